"""Figures as files: deterministic bytes, and text that stays text."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

from emabank.study.report.draw import draw
from emabank.study.report.figure_specs import make_figures
from emabank.study.report.figures import Figure, Line, Panel
from tests.study.report.example_results import make_results, make_setting

LONG = "CIFAR-10N (worse labels), 4,000 images, ResNet-8 of width 24, with flips alone"
X = np.arange(1, 21)


def figure_named(name: str) -> Figure:
    """A figure of made-up results; one setting has a long title."""
    noisy = make_setting("cifar10n-resnet34")
    results = make_results(make_setting(), make_setting("cifar100n-resnet34"), replace(noisy, title=LONG))
    (figure,) = [figure for figure in make_figures(results) if figure.name == f"demo/{name}"]
    return figure


def small(**changes) -> Figure:
    lines = [Line(label="live weights", x=X, y=X * 2.0, std=X / 9, n=3, kind="live"),
             Line(label="ema-7.1%", x=X, y=X * 3.0, n=3, order=4)]  # fmt: skip
    rate = Line(label="learning rate", x=X, y=1 / X, kind="rate")
    panel = Panel(title="digits", lines=lines, rate=rate, marks=[(3.0, 9.0, "chosen on validation")])
    return replace(Figure(name="demo/small", title="A small figure", panels=[panel]), **changes)


@pytest.mark.parametrize("name", ["lines", "batchnorm/heatmap"])
@pytest.mark.parametrize(("file_format", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_same_figure_gives_the_same_bytes(tmp_path, name, file_format, start):
    figure = small() if name == "lines" else figure_named(name)
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        draw(figure, path, file_format=file_format)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(start)


def test_text_of_a_figure_is_text_in_its_svg(tmp_path):
    figure = figure_named("label-noise/memorisation")
    draw(figure, tmp_path / "figure.svg", file_format="svg")
    root = ElementTree.parse(tmp_path / "figure.svg").getroot()
    drawn = " ".join("".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text"))
    panel = figure.panels[0]
    expected = [figure.title, panel.title, panel.x_label, panel.y_label, panel.marks[0][2], panel.marks[1][2], LONG]
    for text in [*expected, *(line.label for line in panel.lines), "mean of 3 seeds"]:
        assert re.sub(r"\s+", " ", text) in re.sub(r"\s+", " ", drawn)
