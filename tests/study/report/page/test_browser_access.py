"""The page in a real browser: by keyboard, on a phone, in the dark, without storage, without JavaScript."""

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
    figures,
    labels_of,
    lines,
    plot,
    point,
    press,
    readout,
    show,
    x_ticks,
)

# Hands, eyes and screens ----------------------------------------------------------------------------------------------


def focused(browser) -> str:
    """What has the focus, in a word."""
    script = """const now = document.activeElement;
    for (const name of ['legend', 'tools', 'links']) if (now.closest('.' + name)) return name;
    return now.id || now.className || now.tagName"""
    return browser.execute_script(script)


def test_the_keyboard_alone_reaches_and_works_everything(browser):
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
            assert labels_of(browser) == [f"row {letter}" for letter in "abcdef"]
        elif name == "theme":
            press(browser, Keys.SPACE)
            assert browser.find_element(By.ID, "theme").text == "Light"
        elif name == "legend" and new:
            press(browser, Keys.SPACE)
            assert lines(plot(browser)) == {"fast"}
            press(browser, Keys.SPACE)
        elif name == "plot":
            break
    assert wanted <= set(reached)


def test_arrow_keys_walk_along_the_epochs_and_say_the_values(browser):
    found = plot(browser)
    spoken = found.find_element(By.XPATH, "following-sibling::p[@aria-live='polite']")
    browser.execute_script("arguments[0].focus()", found)
    said = []
    for keys in (
        (Keys.ARROW_RIGHT,),
        (Keys.ARROW_RIGHT,),
        (Keys.END,),
        (Keys.ARROW_LEFT,),
        (Keys.HOME,),
        (Keys.PAGE_UP,),
    ):
        press(browser, *keys)
        said.append(spoken.get_attribute("textContent"))
    assert [int(re.match(r"epoch (\d+)", text)[1]) for text in said] == [1, 2, 40, 39, 1, 5]
    assert said[1].startswith(f"epoch 2, n = 3: live weights {LIVE[1]:.2f} plus or minus 0.25; fast {FAST[1]:.2f}")
    assert readout(found)[0] == "epoch 5, n = 3"
    before = x_ticks(found)
    press(browser, "+", "+")
    zoomed = x_ticks(found)
    assert zoomed != before
    press(browser, Keys.END)  # what is read out is in view
    assert readout(found)[0] == "epoch 40, n = 3" and max(x_ticks(found)) == 40
    press(browser, "-")
    assert x_ticks(found) != zoomed
    press(browser, Keys.ESCAPE)
    assert x_ticks(found) == before and not found.find_element(By.CSS_SELECTOR, ".readout").is_displayed()


def test_arrow_keys_walk_a_heat_map_in_both_directions(browser):
    found = plot(browser, "figure-batchnorm-a")
    browser.execute_script("arguments[0].focus()", found)
    press(browser, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert readout(found) == ("epoch 2", {"slow": "9.000"})


def test_everything_that_can_be_pressed_has_a_name(browser):
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = ("button", "link", "combobox", "application", "table", "region")
    found = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    assert {role for role, _ in found} >= {"button", "link", "combobox", "application", "table"}
    assert [(role, name) for role, name in found if role in roles and not name.strip()] == []


@pytest.mark.parametrize("width", [360, 800, 1300])
def test_the_page_itself_never_scrolls_sideways(browser, path, width):
    show(browser, width=width, height=760)
    browser.get(path.as_uri())
    for figure in figures():
        found = plot(browser, "figure-" + figure.name.replace("/", "-"))
        ActionChains(browser, duration=0).move_to_element_with_offset(found, found.size["width"] // 2 - 20, 0).perform()
        # A phone zooms out of a page that is too wide, so that innerWidth grows with it.
        assert browser.execute_script("return Math.max(document.documentElement.scrollWidth, innerWidth)") <= width
    boxes = browser.find_elements(By.CSS_SELECTOR, ".sheet .scroll")
    cut = [box for box in boxes if box.get_property("scrollWidth") > box.get_property("clientWidth")]
    assert width > 360 or cut
    hint = "return getComputedStyle(arguments[0], '::before').content"
    assert all("scroll" in browser.execute_script(hint, box) for box in cut)


def background(browser) -> str:
    return browser.execute_script("return getComputedStyle(document.body).backgroundColor")


def test_dark_follows_the_system_and_the_button_is_remembered(browser, path):
    light = background(browser)
    show(browser, scheme="dark")
    dark = background(browser)
    assert dark != light
    button = browser.find_element(By.ID, "theme")
    WebDriverWait(browser, 10).until(lambda _: button.text == "Light")  # told by an event
    button.click()
    assert background(browser) == light
    # Chromium stores the choice in its own time, and the page reads it as it loads.
    WebDriverWait(browser, 10).until(lambda _: browser.get(path.as_uri()) or background(browser) == light)
    assert browser.find_element(By.ID, "theme").text == "Dark"


def test_without_storage_the_button_works_all_the_same(browser, path):
    browser.get_log("browser")
    browser.get("data:text/html;base64," + base64.b64encode(path.read_bytes()).decode())
    before = background(browser)
    browser.find_element(By.ID, "theme").click()
    assert background(browser) != before
    assert browser.get_log("browser") == []


def test_nothing_moves_where_less_motion_is_wished_for(browser):
    behaviour = "return getComputedStyle(document.documentElement).scrollBehavior"
    assert browser.execute_script(behaviour) == "auto"
    show(browser, motion="no-preference")
    assert browser.execute_script(behaviour) == "smooth"


def test_the_scale_switch_shows_one_scale(browser):
    Select(browser.find_element(By.ID, "scale")).select_by_visible_text("small")
    shown = {each.get_attribute("data-scale") for each in browser.find_elements(By.CSS_SELECTOR, "[data-scale]")
             if each.is_displayed()}  # fmt: skip
    assert shown == {"small"}
    studies = {
        each.get_attribute("id"): each.is_displayed() for each in browser.find_elements(By.CSS_SELECTOR, ".study")
    }
    assert studies == {"study-generalization": False, "study-dynamics": False, "study-batchnorm": True,
                       "study-calibration": False}  # fmt: skip
    assert not browser.find_element(By.CSS_SELECTOR, ".links a[href='#study-dynamics']").is_displayed()
    Select(browser.find_element(By.ID, "scale")).select_by_visible_text("all scales")
    found = plot(browser)
    point(browser, found, 0.5)
    assert readout(found)[0].startswith("epoch ")


def test_without_javascript_the_tables_are_there(browser, path):
    def box(selector: str) -> float:
        """The height at which it is shown, by the browser's own account, since no script may run; 0 if it is not."""
        root = browser.execute_cdp_cmd("DOM.getDocument", {})["root"]["nodeId"]
        node = browser.execute_cdp_cmd("DOM.querySelector", {"nodeId": root, "selector": selector})["nodeId"]
        assert node, f"no {selector}"
        try:
            return browser.execute_cdp_cmd("DOM.getBoxModel", {"nodeId": node})["model"]["height"]
        except WebDriverException:  # "Could not compute box model": it has none
            return 0

    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.execute_cdp_cmd("Page.navigate", {"url": path.as_uri()})
        # Between two pages there is neither a document to ask nor, for a moment, what it will hold.
        wait = WebDriverWait(browser, 10, ignored_exceptions=[WebDriverException, AssertionError])
        wait.until(lambda _: box("#obtained") > 0)
        assert box(".sheet table") > 100 and box(".headline") > 50 and box(".key .whisker") > 0
        assert box("#figure-dynamics-a noscript") > 10
        assert box(".controls") == 0  # what needs a script is not offered
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
