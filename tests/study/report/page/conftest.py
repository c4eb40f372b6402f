"""The page in a file, and a browser that opens it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from emabank.study.report.page import page
from emabank.study.runs.manifest import Manifest
from tests.study.report.example_results import make_results, make_setting
from tests.study.report.page.browsing import CHROMIUM, DRIVER, claims, emulate, figures, tables


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
