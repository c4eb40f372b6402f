"""The page in a real browser, opened from a file: figures respond, tables sort, and no network is used."""

import base64
import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions import interaction
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.actions.pointer_input import PointerInput
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.study.report.page.browsing import (
    FAST,
    LIVE,
    RATES,
    axes_extent,
    find_plot,
    hover,
    line_labels,
    readout,
    row_labels,
    x_ticks,
)

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
