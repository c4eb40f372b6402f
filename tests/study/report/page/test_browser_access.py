"""The page in a real browser: keyboard, screen widths, colour schemes, no storage, no JavaScript."""

import base64
import re

import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.study.report.page.browsing import (
    FAST,
    LIVE,
    emulate,
    figures,
    find_plot,
    hover,
    line_labels,
    press,
    readout,
    row_labels,
    x_ticks,
)


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
