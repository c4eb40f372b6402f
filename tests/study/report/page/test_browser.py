"""The page in a real browser, opened from a file: figures respond, tables sort, no network is used, for any reader."""

import base64
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions import interaction
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.actions.pointer_input import PointerInput
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from emabank.study.report.claims import Claim, Finding, above
from emabank.study.report.figures import Figure, Line, Panel
from emabank.study.report.page import page
from emabank.study.report.tables import Cell, Row, Table
from emabank.study.runs.manifest import Manifest
from tests.study.report.example_results import make_results, make_setting

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

# Content of the page --------------------------------------------------------------------------------------------------

EPOCHS = np.arange(1, 41)
LIVE, FAST = 40 + EPOCHS * 0.9, 45 + EPOCHS * 0.8 + np.sin(EPOCHS)
RATES = 0.8 * (1 + np.cos(np.pi * EPOCHS / 40)) / 2


def curves() -> list[Line]:
    spread = np.full(40, 0.25)
    return [Line(label="live weights", x=EPOCHS, y=LIVE, std=spread, n=3, kind="live"),
            Line(label="fast", x=EPOCHS, y=FAST, std=spread, n=3)]  # fmt: skip


def figures() -> list[Figure]:
    rate = Line(label="learning rate", x=EPOCHS, y=RATES, kind="rate", n=3)
    measured = np.where(np.isin(EPOCHS, (1, 2, 3, 10, 20, 21)), 50.0, np.nan)
    gaps = Line(label="with gaps", x=EPOCHS, y=measured, n=1, kind="best")
    panels = [Panel(title="digits", lines=curves(), rate=rate, marks=[(20.0, 60.0, "chosen on validation")]),
              Panel(title="letters", lines=[*curves(), gaps])]  # fmt: skip
    bars = Panel(title="SGD", x_label="confidence, %", y_label="accuracy, %", y_limits=(0, 100),
                 bars=[(0, 50, 30.0), (50, 25, 62.5), (75, 25, 81.25)])  # fmt: skip
    heat = Panel(title="over epochs", y_label="", grid=np.arange(12.0).reshape(3, 4), x_ticks=["1", "2", "3", "4"],
                 y_ticks=["fast", "middle", "slow"], marks=[(3.0, 1.0, "best of the middle one")])  # fmt: skip
    return [
        Figure(
            name="dynamics/a",
            title="Through training",
            panels=panels,
            columns=2,
            study="dynamics",
            scale="demo",
            caption="Mean of 3 seeds; not smoothed.",
        ),
        Figure(name="calibration/a", title="Reliability", panels=[bars], study="calibration", scale="demo"),
        Figure(name="batchnorm/a", title="Heat map", panels=[heat], study="batchnorm", scale="small"),
    ]


def tables() -> list[Table]:
    means = (71.0, -5.0, 9.5, 100.0, -20.0)
    rows = [Row(f"row {name}", [Cell.of([mean - 1, mean + 1], paper="78.54 ± 0.28"), Cell(text="a wide cell " * 6)])
            for name, mean in zip("dacbf", means, strict=True)]  # fmt: skip
    rows.append(Row("row e", [Cell(text="–"), Cell(text="words")]))
    title = "A title that is long enough to reach beyond the edge of a phone if it were not broken"
    return [Table(name="generalization/a", title=title, columns=["setting", "accuracy, %", "remarks"], rows=rows,
                  study="generalization", scale="demo", breaks=[2])]  # fmt: skip


def claims() -> list[Claim]:
    finding = Finding(
        role="primary", key="gain", statistic="EMA minus SGD, points", setting="digits, ResNet-8", scale="demo",
        rule=above(), by_seed={0: 1.0, 1: 2.0, 2: 3.0}, mean=2.0, low=-0.5, high=4.5, verdict="inconclusive",
        paper="+0.92",
    )  # fmt: skip
    return [Claim(number=str(number), title=f"A claim with a title of several words, and with the number {number}",
                  studies=["dynamics"], findings=[finding]) for number in (1, 2)]  # fmt: skip


# The browser --------------------------------------------------------------------------------------------------------


def emulate(driver, *, width: int = 1300, height: int = 900, scheme: str = "light", motion: str = "reduce") -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": motion}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def find_plot(browser, figure: str = "figure-dynamics-a", panel: int = 0):
    """Scroll to a panel's plot and wait until it is drawn."""
    plot = browser.find_elements(By.CSS_SELECTOR, f"#{figure} .plot")[panel]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    WebDriverWait(browser, 10).until(lambda _: plot.find_elements(By.CSS_SELECTOR, ".x-tick, rect"))
    return plot


def axes_extent(browser, plot) -> tuple[float, float, float]:
    """The left and right edge of the axes, and a height inside them, in pixels from the element's middle."""
    script = """const all = [...arguments[0].querySelectorAll('.axis')].map(axis => axis.getBoundingClientRect()),
    wide = all.sort((a, b) => b.width - a.width)[0], box = arguments[0].getBoundingClientRect();
    return [wide.left - box.left - box.width / 2, wide.right - box.left - box.width / 2, -box.height / 4]"""
    return tuple(browser.execute_script(script, plot))


def hover(browser, plot, share: float) -> None:
    left, right, height = axes_extent(browser, plot)
    ActionChains(browser, duration=0).move_to_element_with_offset(
        plot, round(left + share * (right - left)), round(height)
    ).perform()


def readout(plot) -> tuple[str, dict[str, str]]:
    """The heading of the readout, and its values by label."""
    box = plot.find_element(By.CSS_SELECTOR, ".readout")
    rows = [
        [cell.text for cell in row.find_elements(By.TAG_NAME, "td")] for row in box.find_elements(By.TAG_NAME, "tr")
    ]
    return box.find_element(By.TAG_NAME, "b").text, {label: text for _, label, text in rows}


def x_ticks(plot) -> list[float]:
    return [float(tick.text.replace("−", "-")) for tick in plot.find_elements(By.CSS_SELECTOR, ".x-tick")]


def line_labels(plot) -> set[str]:
    return {line.get_attribute("data-label") for line in plot.find_elements(By.CSS_SELECTOR, "path[data-label]")}


def press(browser, *keys: str) -> None:
    ActionChains(browser, duration=0).send_keys(*keys).perform()


def row_labels(browser) -> list[str]:
    return [head.text for head in browser.find_elements(By.CSS_SELECTOR, ".sheet tbody th")]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    studies = [
        Manifest(study=name, scale="demo", command="emabank run all --scale demo", state="done")
        for name in ("generalization", "dynamics", "batchnorm", "calibration")
    ]
    results = replace(make_results(make_setting(), make_setting(scale="small")), studies=studies)
    text = page(results, tables(), figures(), claims(), facts={"emabank": "0.4.0"})
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Iterator[webdriver.Chrome]:
    if not (CHROMIUM and DRIVER):
        pytest.skip("needs a browser: install chromium and chromedriver (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "disable-quic", "no-first-run",
                 "disable-background-networking", "disable-component-update", "disable-sync", "window-size=1300,900",
                 f"user-data-dir={tmp_path_factory.mktemp('profile')}"):  # fmt: skip
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def browser(driver, path):
    """The page, newly opened in a wide window, in the light scheme, without animations."""
    emulate(driver)
    driver.get(path.as_uri())
    if driver.execute_script("const any = localStorage.length > 0; localStorage.clear(); return any"):
        driver.get(path.as_uri())
    return driver


# Console, network and policy ------------------------------------------------------------------------------------------


def new_requests(driver) -> set[str]:
    """The addresses requested since the last call."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}


def test_console_stays_empty_and_no_network_is_requested(browser, path):
    browser.get_log("browser")
    new_requests(browser)
    browser.get(path.as_uri())
    for share in (0.0, 0.5, 1.0):
        browser.execute_script("scrollTo(0, arguments[0] * document.body.scrollHeight)", share)
        find_plot(browser)
    assert browser.get_log("browser") == []
    requests = new_requests(browser)
    assert {address for address in requests if not address.startswith("data:")} == {path.as_uri()}


def test_control_a_request_and_a_console_error_are_detected(driver, tmp_path):
    (tmp_path / "other.html").write_text("<img src='http://127.0.0.1:9/x.png'><script>console.error('no')</script>")
    driver.get_log("browser")
    driver.get((tmp_path / "other.html").as_uri())
    assert "http://127.0.0.1:9/x.png" in new_requests(driver)
    assert any("no" in entry["message"] for entry in driver.get_log("browser"))


def test_policy_blocks_injected_scripts_and_requests(browser):
    browser.execute_script("""
        const script = document.createElement('script');
        script.textContent = 'window.broken = true';
        document.body.append(script);
        const image = document.createElement('img');
        image.src = 'http://127.0.0.1:9/x.png';
        document.body.append(image);""")
    assert browser.execute_script("return window.broken === undefined")
    messages = [entry["message"] for entry in browser.get_log("browser")]
    assert any("script-src" in message for message in messages) and any("img-src" in message for message in messages)


# Figures --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.31, 1.0])
def test_hovering_reads_out_the_measured_values(browser, share):
    plot = find_plot(browser)
    hover(browser, plot, share)
    head, values = readout(plot)
    epoch = int(re.fullmatch(r"epoch (\d+), n = 3", head)[1])
    assert abs(epoch - (1 + share * 39)) <= 0.6
    assert values["live weights"] == f"{LIVE[epoch - 1]:.2f} ± 0.25"
    assert values["fast"] == f"{FAST[epoch - 1]:.2f} ± 0.25"
    assert float(values["learning rate"]) == pytest.approx(RATES[epoch - 1], abs=6e-5)


def test_readout_explains_a_mark_at_its_epoch_only(browser):
    plot = find_plot(browser)
    hover(browser, plot, 19 / 39)
    assert "◆ chosen on validation" in readout(plot)[1]
    hover(browser, plot, 0.9)
    assert "◆ chosen on validation" not in readout(plot)[1]


def test_missing_values_are_gaps_and_a_lone_value_is_a_dot(browser):
    plot = find_plot(browser, panel=1)
    line = plot.find_element(By.CSS_SELECTOR, "path[data-label='with gaps']").get_attribute("d")
    assert [piece.count("L") for piece in line.split("M")[1:]] == [2, 1]  # epochs 1 to 3, 20 and 21
    assert len(plot.find_elements(By.CSS_SELECTOR, "circle.c-best")) == 1
    hover(browser, plot, 9 / 39)
    head, values = readout(plot)
    assert head == "epoch 10" and values["with gaps"] == "50.00, n = 1"
    hover(browser, plot, 11 / 39)
    assert "with gaps" not in readout(plot)[1] and readout(plot)[0] == "epoch 12, n = 3"


def test_curves_are_clipped_to_the_area_above_the_learning_rate(browser):
    plot = find_plot(browser)
    script = """const group = arguments[0].querySelector('path[data-label]').closest('[clip-path]');
    const clip = document.getElementById(group.getAttribute('clip-path').slice(5, -1)), box = clip.firstElementChild;
    const axis = Math.min(...[...arguments[0].querySelectorAll('line.axis')].map(line => line.y1.baseVal.value));
    return [clip.childElementCount, box.y.baseVal.value + box.height.baseVal.value - axis]"""
    count, below = browser.execute_script(script, plot)
    assert count == 1 and abs(below) <= 1


def test_readout_disappears_when_the_pointer_leaves(browser):
    plot = find_plot(browser)
    hover(browser, plot, 0.5)
    assert plot.find_element(By.CSS_SELECTOR, ".readout").is_displayed()
    ActionChains(browser, duration=0).move_to_element(browser.find_element(By.CSS_SELECTOR, ".bar")).perform()
    assert not plot.find_element(By.CSS_SELECTOR, ".readout").is_displayed()


def test_bars_and_heat_maps_have_readouts(browser):
    plot = find_plot(browser, "figure-calibration-a")
    hover(browser, plot, 0.6)
    assert readout(plot) == ("confidence, % 50 to 75", {"bar: accuracy, %": "62.50"})
    heat = find_plot(browser, "figure-batchnorm-a")
    cells = heat.find_elements(By.CSS_SELECTOR, ".cells > rect")
    assert len(cells) == 12 and len({cell.get_attribute("fill") for cell in cells}) > 8
    ActionChains(browser, duration=0).move_to_element(cells[7]).perform()
    assert readout(heat) == ("epoch 4", {"middle": "7.000", "◆ best of the middle one": ""})


def test_legend_entry_hides_its_line_in_every_panel(browser):
    panels = [find_plot(browser, panel=number) for number in (1, 0)]
    all_lines = [{"live weights", "fast", "with gaps"}, {"live weights", "fast"}]
    button = browser.find_elements(By.CSS_SELECTOR, "#figure-dynamics-a .legend button")[0]
    assert [line_labels(panel) for panel in panels] == all_lines
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert [line_labels(panel) for panel in panels] == [{"fast", "with gaps"}, {"fast"}]
    hover(browser, panels[1], 0.5)
    assert "live weights" not in readout(panels[1])[1]
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert [line_labels(panel) for panel in panels] == all_lines


def drag(browser, plot, start: float, end: float) -> None:
    hover(browser, plot, start)
    left, right, _ = axes_extent(browser, plot)
    actions = ActionChains(browser, duration=0).click_and_hold()
    actions.move_by_offset(round((end - start) * (right - left)), 0).release().perform()


def test_smoothing_changes_the_curves_and_not_the_values_read_out(browser):
    def heights() -> np.ndarray:
        path = plot.find_element(By.CSS_SELECTOR, "path[data-label=fast]").get_attribute("d")
        return np.array([float(pair.split()[1]) for pair in path[1:].split("L")])

    plot, button = find_plot(browser), browser.find_element(By.ID, "smooth")
    caption = browser.find_element(By.CSS_SELECTOR, "figcaption p")
    pixels = np.polyfit(FAST, heights(), 1)  # the axis is linear
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert caption.text == "Mean of 3 seeds; smoothed over three epochs."
    means = np.array([FAST[0], *np.convolve(FAST, np.ones(3) / 3, mode="valid"), FAST[-1]])
    np.testing.assert_allclose(heights(), np.polyval(pixels, means), atol=0.1)
    hover(browser, plot, 0.5)
    head, values = readout(plot)
    epoch = int(re.fullmatch(r"epoch (\d+), n = 3", head)[1])
    assert values["fast"] == f"{FAST[epoch - 1]:.2f} ± 0.25"
    button.click()
    assert caption.text == "Mean of 3 seeds; not smoothed."
    np.testing.assert_allclose(heights(), np.polyval(pixels, FAST), atol=0.1)


def test_dragging_zooms_one_panel_and_the_reset_button_undoes_it(browser):
    plot = find_plot(browser)
    before, other = x_ticks(plot), x_ticks(find_plot(browser, panel=1))
    plot = find_plot(browser)
    drag(browser, plot, 10 / 39, 20 / 39)  # epochs 11 to 21
    within = x_ticks(plot)
    assert within != before and min(within) > 10.5 and max(within) < 21.5
    assert x_ticks(find_plot(browser, panel=1)) == other
    hover(browser, plot, 0.0)
    assert readout(plot)[0] in ("epoch 11, n = 3", "epoch 12, n = 3")
    reset = browser.find_element(By.CSS_SELECTOR, "#figure-dynamics-a .tools button:last-child")
    reset.click()
    assert x_ticks(plot) == before and not reset.is_enabled()


def test_buttons_ctrl_wheel_and_double_click_zoom(browser):
    plot = find_plot(browser)
    before = x_ticks(plot)
    _, out, closer, _ = browser.find_elements(By.CSS_SELECTOR, "#figure-dynamics-a .panel:first-child .tools button")
    closer.click()
    assert x_ticks(plot) != before
    out.click()
    assert x_ticks(plot) == before
    wheel = "arguments[0].dispatchEvent(new WheelEvent('wheel', {deltaY: -100, ctrlKey: arguments[1], clientX: 500}))"
    browser.execute_script(wheel, plot, False)
    assert x_ticks(plot) == before, "without Ctrl the wheel scrolls the page"
    for _ in range(3):
        browser.execute_script(wheel, plot, True)
    assert x_ticks(plot) != before
    ActionChains(browser, duration=0).double_click(plot).perform()
    assert x_ticks(plot) == before


def test_touch_reads_values_and_does_not_zoom(browser):
    plot = find_plot(browser)
    before = x_ticks(plot)
    finger = ActionBuilder(browser, mouse=PointerInput(interaction.POINTER_TOUCH, "finger"), duration=0)
    finger.pointer_action.move_to(plot, -100, 0).pointer_down().move_to(plot, 100, 0).pointer_up()
    finger.perform()
    assert plot.find_element(By.CSS_SELECTOR, ".readout").is_displayed()
    assert readout(plot)[0].startswith("epoch ") and x_ticks(plot) == before


def test_printing_draws_all_figures_and_opens_all_details(browser):
    undrawn = "return [...document.querySelectorAll('.plot > svg')].filter(svg => !svg.childElementCount).length"
    folded = "return [...document.querySelectorAll('details')].filter(details => !details.open).length"
    browser.execute_script("scrollTo(0, 0)")
    assert browser.execute_script(folded) > 0
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    assert browser.execute_script(undrawn) == browser.execute_script(folded) == 0


def test_link_into_folded_details_opens_them(browser, path):
    browser.get(f"{path.as_uri()}#claim-2-title")
    opened = browser.find_elements(By.CSS_SELECTOR, "details.claim[open]")
    assert [details.get_attribute("id") for details in opened] == ["claim-2"]


def test_figure_downloads_as_a_self_contained_svg(browser, tmp_path):
    browser.execute_cdp_cmd("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    find_plot(browser)
    browser.find_element(By.CSS_SELECTOR, "#figure-dynamics-a .tools button[title='Download as SVG']").click()
    WebDriverWait(browser, 10).until(lambda _: [*tmp_path.glob("*.svg")])
    (file,) = tmp_path.glob("*.svg")
    root = ElementTree.fromstring(file.read_text(encoding="utf-8"))
    lines = [path for path in root.iter("{http://www.w3.org/2000/svg}path") if path.get("data-label")]
    assert {line.get("data-label") for line in lines} == {"live weights", "fast"}
    assert all(line.get("stroke", "").startswith("rgb") for line in lines)


# Tables ---------------------------------------------------------------------------------------------------------------


def test_three_clicks_sort_ascending_descending_and_not_at_all(browser):
    first = row_labels(browser)
    head = browser.find_elements(By.CSS_SELECTOR, ".sheet .columns th")[1]
    button = head.find_element(By.TAG_NAME, "button")
    steps = []
    for _ in range(3):
        button.click()
        steps.append((head.get_attribute("aria-sort"), [label[-1] for label in row_labels(browser)]))
    assert steps == [
        ("ascending", ["f", "a", "c", "d", "b", "e"]),  # -20, -5, 9.5, 71, 100, missing
        ("descending", ["b", "d", "c", "a", "f", "e"]),
        ("none", [label[-1] for label in first]),
    ]


def test_labels_sort_alphabetically_and_only_one_column_is_sorted(browser):
    heads = browser.find_elements(By.CSS_SELECTOR, ".sheet .columns th")
    for head in (heads[1], heads[0]):
        head.find_element(By.TAG_NAME, "button").click()
    assert [head.get_attribute("aria-sort") for head in heads] == ["ascending", "none", "none"]
    assert row_labels(browser) == [f"row {name}" for name in "abcdef"]


# Every reader ---------------------------------------------------------------------------------------------------------


def focused(browser) -> str:
    """The name of the focused element, or of the group of controls around it."""
    script = """const now = document.activeElement;
    for (const name of ['legend', 'tools', 'links']) if (now.closest('.' + name)) return name;
    return now.id || now.className || now.tagName"""
    return browser.execute_script(script)


def test_keyboard_reaches_and_operates_every_control(browser):
    wanted = {"skip", "theme", "scale", "links", "legend", "tools", "plot", "scroll", "sort"}
    reached: dict[str, object] = {}
    for _ in range(80):
        press(browser, Keys.TAB)
        name = focused(browser)
        assert browser.execute_script("return document.activeElement.matches(':focus-visible')")
        first = reached.setdefault(name, browser.switch_to.active_element)
        new = first == browser.switch_to.active_element
        if name == "sort" and new:
            press(browser, Keys.ENTER)
            assert row_labels(browser) == [f"row {letter}" for letter in "abcdef"]
        elif name == "theme":
            press(browser, Keys.SPACE)
            assert browser.find_element(By.ID, "theme").text == "Light"
        elif name == "legend" and new:
            press(browser, Keys.SPACE)
            assert line_labels(find_plot(browser)) == {"fast"}
            press(browser, Keys.SPACE)
        elif name == "plot":
            break
    assert wanted <= set(reached)


def test_arrow_keys_step_through_epochs_and_announce_the_values(browser):
    plot = find_plot(browser)
    spoken = plot.find_element(By.XPATH, "following-sibling::p[@aria-live='polite']")
    browser.execute_script("arguments[0].focus()", plot)
    announced = []
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.END, Keys.ARROW_LEFT, Keys.HOME, Keys.PAGE_UP):
        press(browser, key)
        announced.append(spoken.get_attribute("textContent"))
    assert [int(re.match(r"epoch (\d+)", text)[1]) for text in announced] == [1, 2, 40, 39, 1, 5]
    assert announced[1].startswith(f"epoch 2, n = 3: live weights {LIVE[1]:.2f} plus or minus 0.25; fast {FAST[1]:.2f}")
    assert readout(plot)[0] == "epoch 5, n = 3"
    before = x_ticks(plot)
    press(browser, "+", "+")
    zoomed = x_ticks(plot)
    assert zoomed != before
    press(browser, Keys.END)  # the zoomed range follows the readout
    assert readout(plot)[0] == "epoch 40, n = 3" and max(x_ticks(plot)) == 40
    press(browser, "-")
    assert x_ticks(plot) != zoomed
    press(browser, Keys.ESCAPE)
    assert x_ticks(plot) == before and not plot.find_element(By.CSS_SELECTOR, ".readout").is_displayed()


def test_arrow_keys_move_through_a_heat_map_in_both_directions(browser):
    plot = find_plot(browser, "figure-batchnorm-a")
    browser.execute_script("arguments[0].focus()", plot)
    press(browser, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert readout(plot) == ("epoch 2", {"slow": "9.000"})


def test_every_control_has_an_accessible_name(browser):
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = ("button", "link", "combobox", "application", "table", "region")
    controls = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    assert {role for role, _ in controls} >= {"button", "link", "combobox", "application", "table"}
    assert [(role, name) for role, name in controls if role in roles and not name.strip()] == []


@pytest.mark.parametrize("width", [360, 800, 1300])
def test_page_never_scrolls_sideways(browser, path, width):
    emulate(browser, width=width, height=760)
    browser.get(path.as_uri())
    for figure in figures():
        plot = find_plot(browser, "figure-" + figure.name.replace("/", "-"))
        ActionChains(browser, duration=0).move_to_element_with_offset(plot, plot.size["width"] // 2 - 20, 0).perform()
        # A phone zooms out of a page that is too wide, so that innerWidth grows with it.
        assert browser.execute_script("return Math.max(document.documentElement.scrollWidth, innerWidth)") <= width
    boxes = browser.find_elements(By.CSS_SELECTOR, ".sheet .scroll")
    cut = [box for box in boxes if box.get_property("scrollWidth") > box.get_property("clientWidth")]
    assert width > 360 or cut
    hint = "return getComputedStyle(arguments[0], '::before').content"
    assert all("scroll" in browser.execute_script(hint, box) for box in cut)


def background(browser) -> str:
    return browser.execute_script("return getComputedStyle(document.body).backgroundColor")


def test_dark_scheme_follows_the_system_and_the_button_is_remembered(browser, path):
    light = background(browser)
    emulate(browser, scheme="dark")
    dark = background(browser)
    assert dark != light
    button = browser.find_element(By.ID, "theme")
    WebDriverWait(browser, 10).until(lambda _: button.text == "Light")  # an event changes it
    button.click()
    assert background(browser) == light
    # Chromium stores the choice in its own time, and the page reads it as it loads.
    WebDriverWait(browser, 10).until(lambda _: browser.get(path.as_uri()) or background(browser) == light)
    assert browser.find_element(By.ID, "theme").text == "Dark"


def test_theme_button_works_without_storage(browser, path):
    browser.get_log("browser")
    browser.get("data:text/html;base64," + base64.b64encode(path.read_bytes()).decode())
    before = background(browser)
    browser.find_element(By.ID, "theme").click()
    assert background(browser) != before
    assert browser.get_log("browser") == []


def test_scrolling_is_not_animated_with_reduced_motion(browser):
    behaviour = "return getComputedStyle(document.documentElement).scrollBehavior"
    assert browser.execute_script(behaviour) == "auto"
    emulate(browser, motion="no-preference")
    assert browser.execute_script(behaviour) == "smooth"


def test_scale_menu_shows_only_one_scale(browser):
    Select(browser.find_element(By.ID, "scale")).select_by_visible_text("small")
    parts, studies = (browser.find_elements(By.CSS_SELECTOR, selector) for selector in ("[data-scale]", ".study"))
    assert {part.get_attribute("data-scale") for part in parts if part.is_displayed()} == {"small"}
    assert len(studies) == 4
    assert [study.get_attribute("id") for study in studies if study.is_displayed()] == ["study-batchnorm"]
    assert not browser.find_element(By.CSS_SELECTOR, ".links a[href='#study-dynamics']").is_displayed()
    Select(browser.find_element(By.ID, "scale")).select_by_visible_text("all scales")
    plot = find_plot(browser)
    hover(browser, plot, 0.5)
    assert readout(plot)[0].startswith("epoch ")


def test_tables_are_readable_without_javascript(browser, path):
    def height(selector: str) -> float:
        """The height of an element in the layout, read without a script; 0 if it is hidden."""
        root = browser.execute_cdp_cmd("DOM.getDocument", {})["root"]["nodeId"]
        node = browser.execute_cdp_cmd("DOM.querySelector", {"nodeId": root, "selector": selector})["nodeId"]
        assert node, f"no {selector}"
        try:
            return browser.execute_cdp_cmd("DOM.getBoxModel", {"nodeId": node})["model"]["height"]
        except WebDriverException:  # "Could not compute box model": hidden
            return 0

    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.execute_cdp_cmd("Page.navigate", {"url": path.as_uri()})
        # While the page loads, the document or the element is missing.
        wait = WebDriverWait(browser, 10, ignored_exceptions=[WebDriverException, AssertionError])
        wait.until(lambda _: height("#obtained") > 0)
        assert height(".sheet table") > 100 and height(".headline") > 50 and height(".key .whisker") > 0
        assert height("#figure-dynamics-a noscript") > 10
        assert height(".controls") == 0, "controls need JavaScript"
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
