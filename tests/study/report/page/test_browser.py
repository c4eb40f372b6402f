"""The page in a real browser, opened from a file: the figures react, tables sort, no network is asked."""

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

from tests.study.report.page.browsing import FAST, LIVE, RATES, area, labels_of, lines, plot, point, readout, x_ticks

# Alone in the world ---------------------------------------------------------------------------------------------------


def addresses(driver) -> set[str]:
    """What the browser asked for since this was looked at last."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}


def test_no_complaint_in_the_console_and_no_request_to_a_network(browser, path):
    browser.get_log("browser")
    addresses(browser)
    browser.get(path.as_uri())
    for share in (0.0, 0.5, 1.0):
        browser.execute_script("scrollTo(0, arguments[0] * document.body.scrollHeight)", share)
        plot(browser)
    assert browser.get_log("browser") == []
    asked = addresses(browser)
    assert path.as_uri() in asked
    assert {each for each in asked if not each.startswith(("file:", "data:"))} == set()
    assert {each for each in asked if each.startswith("file:")} == {path.as_uri()}


def test_control_a_request_and_a_complaint_are_seen(driver, tmp_path):
    (tmp_path / "other.html").write_text("<img src='http://127.0.0.1:9/x.png'><script>console.error('no')</script>")
    driver.get_log("browser")
    driver.get((tmp_path / "other.html").as_uri())
    assert "http://127.0.0.1:9/x.png" in addresses(driver)
    assert any("no" in entry["message"] for entry in driver.get_log("browser"))


def test_the_policy_stops_a_script_and_a_request_that_came_in_through_a_hole(browser):
    browser.execute_script("""
        const script = document.createElement('script');
        script.textContent = 'window.broken = true';
        document.body.append(script);
        const image = document.createElement('img');
        image.src = 'http://127.0.0.1:9/x.png';
        document.body.append(image);""")
    assert browser.execute_script("return window.broken === undefined")
    stopped = [entry["message"] for entry in browser.get_log("browser")]
    assert any("script-src" in message for message in stopped) and any("img-src" in message for message in stopped)


# Figures --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.31, 1.0])
def test_hovering_reads_out_what_was_measured_there(browser, share):
    found = plot(browser)
    point(browser, found, share)
    head, values = readout(found)
    epoch = int(re.fullmatch(r"epoch (\d+), n = 3", head)[1])
    assert abs(epoch - (1 + share * 39)) <= 0.6
    assert values["live weights"] == f"{LIVE[epoch - 1]:.2f} ± 0.25"
    assert values["fast"] == f"{FAST[epoch - 1]:.2f} ± 0.25"
    assert float(values["learning rate"]) == pytest.approx(RATES[epoch - 1], abs=6e-5)


def test_a_mark_is_explained_where_it_lies(browser):
    found = plot(browser)
    point(browser, found, 19 / 39)
    assert "◆ chosen on validation" in readout(found)[1]
    point(browser, found, 0.9)
    assert "◆ chosen on validation" not in readout(found)[1]


def test_what_was_not_measured_is_a_gap_and_a_lone_value_a_dot(browser):
    found = plot(browser, panel=1)
    drawn = found.find_element(By.CSS_SELECTOR, "path[data-label='with gaps']").get_attribute("d")
    assert [piece.count("L") for piece in drawn.split("M")[1:]] == [2, 1]  # epochs 1 to 3, 20 and 21
    assert len(found.find_elements(By.CSS_SELECTOR, "circle.c-best")) == 1
    point(browser, found, 9 / 39)
    head, values = readout(found)
    assert head == "epoch 10" and values["with gaps"] == "50.00, n = 1"
    point(browser, found, 11 / 39)
    assert "with gaps" not in readout(found)[1] and readout(found)[0] == "epoch 12, n = 3"


def test_curves_stay_in_their_own_area(browser):
    found = plot(browser)
    script = """const group = arguments[0].querySelector('path[data-label]').closest('[clip-path]');
    const clip = document.getElementById(group.getAttribute('clip-path').slice(5, -1)), box = clip.firstElementChild;
    const axis = Math.min(...[...arguments[0].querySelectorAll('line.axis')].map(each => each.y1.baseVal.value));
    return [clip.childElementCount, box.y.baseVal.value + box.height.baseVal.value - axis]"""
    count, below = browser.execute_script(script, found)
    assert count == 1 and abs(below) <= 1  # the learning rate lies beneath


def test_the_readout_goes_when_the_pointer_does(browser):
    found = plot(browser)
    point(browser, found, 0.5)
    assert found.find_element(By.CSS_SELECTOR, ".readout").is_displayed()
    ActionChains(browser, duration=0).move_to_element(browser.find_element(By.CSS_SELECTOR, ".bar")).perform()
    assert not found.find_element(By.CSS_SELECTOR, ".readout").is_displayed()


def test_bars_and_heat_maps_are_read_out_too(browser):
    found = plot(browser, "figure-calibration-a")
    point(browser, found, 0.6)
    assert readout(found) == ("confidence, % 50 to 75", {"bar: accuracy, %": "62.50"})
    heat = plot(browser, "figure-batchnorm-a")
    cells = heat.find_elements(By.CSS_SELECTOR, ".cells > rect")
    assert len(cells) == 12 and len({cell.get_attribute("fill") for cell in cells}) > 8
    ActionChains(browser, duration=0).move_to_element(cells[7]).perform()
    assert readout(heat) == ("epoch 4", {"middle": "7.000", "◆ best of the middle one": ""})


def test_an_entry_of_the_legend_hides_its_line_in_every_panel(browser):
    panels = [plot(browser, panel=number) for number in (1, 0)]
    all_lines = [{"live weights", "fast", "with gaps"}, {"live weights", "fast"}]
    button = browser.find_elements(By.CSS_SELECTOR, "#figure-dynamics-a .legend button")[0]
    assert [lines(each) for each in panels] == all_lines
    button.click()
    assert button.get_attribute("aria-pressed") == "false" and [lines(each) for each in panels] == [
        {"fast", "with gaps"},
        {"fast"},
    ]
    point(browser, panels[1], 0.5)
    assert "live weights" not in readout(panels[1])[1]
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert [lines(each) for each in panels] == all_lines


def drag(browser, found, start: float, end: float) -> None:
    point(browser, found, start)
    left, right, _ = area(browser, found)
    moved = ActionChains(browser, duration=0).click_and_hold().move_by_offset(round((end - start) * (right - left)), 0)
    moved.release().perform()


def test_curves_are_smoothed_on_demand_and_values_stay_as_measured(browser):
    def drawn() -> np.ndarray:
        path = found.find_element(By.CSS_SELECTOR, "path[data-label=fast]").get_attribute("d")
        return np.array([float(pair.split()[1]) for pair in path[1:].split("L")])

    found, button = plot(browser), browser.find_element(By.ID, "smooth")
    pixels = np.polyfit(FAST, drawn(), 1)  # the axis is linear
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    means = np.array([FAST[0], *np.convolve(FAST, np.ones(3) / 3, mode="valid"), FAST[-1]])
    np.testing.assert_allclose(drawn(), np.polyval(pixels, means), atol=0.1)
    point(browser, found, 0.5)
    head, values = readout(found)
    epoch = int(re.fullmatch(r"epoch (\d+), n = 3", head)[1])
    assert values["fast"] == f"{FAST[epoch - 1]:.2f} ± 0.25"
    button.click()
    np.testing.assert_allclose(drawn(), np.polyval(pixels, FAST), atol=0.1)


def test_dragging_zooms_into_a_range_and_the_button_shows_all_again(browser):
    found = plot(browser)
    before, other = x_ticks(found), x_ticks(plot(browser, panel=1))
    found = plot(browser)
    drag(browser, found, 10 / 39, 20 / 39)  # epochs 11 to 21
    within = x_ticks(found)
    assert within != before and min(within) > 10.5 and max(within) < 21.5
    assert x_ticks(plot(browser, panel=1)) == other
    point(browser, found, 0.0)
    assert readout(found)[0] in ("epoch 11, n = 3", "epoch 12, n = 3")
    reset = browser.find_element(By.CSS_SELECTOR, "#figure-dynamics-a .tools button:last-child")
    reset.click()
    assert x_ticks(found) == before and not reset.is_enabled()


def test_buttons_the_wheel_with_a_key_and_a_double_click_zoom_too(browser):
    found = plot(browser)
    before = x_ticks(found)
    _, out, closer, _ = browser.find_elements(By.CSS_SELECTOR, "#figure-dynamics-a .panel:first-child .tools button")
    closer.click()
    assert x_ticks(found) != before
    out.click()
    assert x_ticks(found) == before
    wheel = "arguments[0].dispatchEvent(new WheelEvent('wheel', {deltaY: -100, ctrlKey: arguments[1], clientX: 500}))"
    browser.execute_script(wheel, found, False)
    assert x_ticks(found) == before  # it scrolls the page
    for _ in range(3):
        browser.execute_script(wheel, found, True)
    assert x_ticks(found) != before
    ActionChains(browser, duration=0).double_click(found).perform()
    assert x_ticks(found) == before


def test_a_finger_reads_values_and_does_not_zoom(browser):
    found = plot(browser)
    before = x_ticks(found)
    finger = ActionBuilder(browser, mouse=PointerInput(interaction.POINTER_TOUCH, "finger"), duration=0)
    finger.pointer_action.move_to(found, -100, 0).pointer_down().move_to(found, 100, 0).pointer_up()
    finger.perform()
    assert found.find_element(By.CSS_SELECTOR, ".readout").is_displayed()
    assert readout(found)[0].startswith("epoch ") and x_ticks(found) == before


def test_all_figures_are_drawn_before_they_are_printed(browser):
    undrawn = "return [...document.querySelectorAll('.plot > svg')].filter(each => !each.childElementCount).length"
    folded = "return [...document.querySelectorAll('details')].filter(each => !each.open).length"
    browser.execute_script("scrollTo(0, 0)")
    assert browser.execute_script(folded) > 0
    made = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(made["data"]).startswith(b"%PDF")
    assert browser.execute_script(undrawn) == browser.execute_script(folded) == 0


def test_a_link_into_something_folded_opens_it(browser, path):
    browser.get(f"{path.as_uri()}#claim-2-title")
    opened = browser.find_elements(By.CSS_SELECTOR, "details.claim[open]")
    assert [each.get_attribute("id") for each in opened] == ["claim-2"]


def test_a_figure_is_downloaded_as_an_svg_file_that_needs_no_page(browser, tmp_path):
    browser.execute_cdp_cmd("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    plot(browser)
    browser.find_element(By.CSS_SELECTOR, "#figure-dynamics-a .tools button[title='Download as SVG']").click()
    WebDriverWait(browser, 10).until(lambda _: [*tmp_path.glob("*.svg")])
    (file,) = tmp_path.glob("*.svg")
    root = ElementTree.fromstring(file.read_text(encoding="utf-8"))
    drawn = [each for each in root.iter("{http://www.w3.org/2000/svg}path") if each.get("data-label")]
    assert {each.get("data-label") for each in drawn} == {"live weights", "fast"}
    assert all(each.get("stroke", "").startswith("rgb") for each in drawn)


# Tables ---------------------------------------------------------------------------------------------------------------


def test_a_click_sorts_by_number_another_turns_it_and_a_third_undoes_it(browser):
    first = labels_of(browser)
    head = browser.find_elements(By.CSS_SELECTOR, ".sheet .columns th")[1]
    button = head.find_element(By.TAG_NAME, "button")
    steps = []
    for _ in range(3):
        button.click()
        steps.append((head.get_attribute("aria-sort"), [label[-1] for label in labels_of(browser)]))
    assert steps == [
        ("ascending", ["f", "a", "c", "d", "b", "e"]),  # -20, -5, 9.5, 71, 100, and what is missing
        ("descending", ["b", "d", "c", "a", "f", "e"]),
        ("none", [label[-1] for label in first]),
    ]


def test_labels_sort_as_words_and_one_column_is_sorted_at_a_time(browser):
    heads = browser.find_elements(By.CSS_SELECTOR, ".sheet .columns th")
    for head in (heads[1], heads[0]):
        head.find_element(By.TAG_NAME, "button").click()
    assert [head.get_attribute("aria-sort") for head in heads] == ["ascending", "none", "none"]
    assert labels_of(browser) == [f"row {name}" for name in "abcdef"]
