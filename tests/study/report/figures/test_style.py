"""Colours that differ in lightness as well as in hue, and dashes where they do not."""

import numpy as np
from matplotlib import rcParams

from emabank.study.report.figures.style import COLOURS, RC, SHADES, look_of, tint
from emabank.study.report.panel import Line


def lightness(colour: str) -> float:
    """L* of CIE Lab, from 0 to 100."""
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    luminance = float(np.dot(linear, [0.2126, 0.7152, 0.0722]))
    return 116 * luminance ** (1 / 3) - 16


def line(kind: str, order: int = 0, *, dashed: bool = False) -> Line:
    return Line(label="", x=np.arange(2), y=np.arange(2), kind=kind, order=order, dashed=dashed)


def test_shades_go_from_light_to_dark_in_steps_that_can_be_seen():
    steps = -np.diff([lightness(shade) for shade in SHADES])
    assert steps.min() > 8


def test_the_best_average_is_much_darker_than_the_live_weights():
    assert lightness(COLOURS["live"]) - lightness(COLOURS["best"]) > 30


def test_every_line_differs_from_the_others_and_more_averages_than_shades_get_dots():
    lines = [line("live"), line("live", dashed=True), line("swa"), *(line("average", order) for order in range(15))]
    assert len({look_of(each) for each in lines}) == len(lines)
    assert not look_of(line("average", 4)).dashes and look_of(line("average", 5)).dashes


def test_the_order_does_not_change_what_has_a_colour_of_its_own():
    assert look_of(line("live", 7)) == look_of(line("live"))


def test_a_tint_is_lighter_and_of_the_same_hue():
    assert tint("#ff0000", 0.25) == (1.0, 0.75, 0.75)


def test_the_style_names_settings_that_matplotlib_has():
    assert set(RC) <= set(rcParams)
