"""The content of the tested page, and helpers that operate it in a real browser."""

import shutil

import numpy as np
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from emabank.study.report.claims import Claim, Finding, above
from emabank.study.report.figures import Figure, Line, Panel
from emabank.study.report.tables import Cell, Row, Table

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
