"""The page's colours: readable text and distinct lines in both schemes, also with colour blindness."""

import re
from importlib.resources import files

import numpy as np
import pytest

STYLE = files("emabank.study.report").joinpath("assets", "page.css").read_text()
COLOURS = {name: (light, dark) for name, light, dark
           in re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", STYLE)}  # fmt: skip
TEXT = ("ink", "soft", "accent", "theirs", "yes", "no", "open", "live")
LINES = ("live", "best", "swa", "ideal", *(f"a{number}" for number in range(5)), *(f"x{number}" for number in range(6)))
SCHEMES = pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
# Machado, Oliveira and Fernandes (2009), full severity, on linear RGB.
SIGHTS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(colour: str) -> np.ndarray:
    shares = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""
    light = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


def perceived(colour: str, sight: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of a colour as perceived with this kind of sight."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = to_xyz @ np.clip(sight @ linear(colour), 0, 1) / [0.9505, 1.0, 1.089]
    root = [np.cbrt(value) if value > 0.008856 else 7.787 * value + 16 / 116 for value in (x, y, z)]
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def test_every_colour_is_named_and_defined_for_both_schemes():
    used = set(re.findall(r"var\(--([\w-]+)\)", STYLE)) - {"serif", "sans", "mono"}
    assert used <= set(COLOURS) and {*TEXT, *LINES, "ground", "raised", "control", "rule"} == set(COLOURS)
    declarations = STYLE.partition("}")[2]
    assert not re.findall(r"#[0-9a-f]{3,6}\b", declarations)


@SCHEMES
@pytest.mark.parametrize("ground", ["ground", "raised"])
def test_text_and_lines_have_enough_contrast(scheme, ground):
    below = COLOURS[ground][scheme]
    assert {name for name in TEXT if contrast(COLOURS[name][scheme], below) < 4.5} == set()
    assert {name for name in (*LINES, "control") if contrast(COLOURS[name][scheme], below) < 3} == set()


@SCHEMES
@pytest.mark.parametrize("together", [("live", *(f"a{number}" for number in range(5))), ("live", "best", "swa")])
@pytest.mark.parametrize("sight", SIGHTS)
def test_lines_of_one_figure_differ_with_every_kind_of_sight(scheme, together, sight):
    looks = {name: perceived(COLOURS[name][scheme], SIGHTS[sight]) for name in together}
    near = {(one, other): np.linalg.norm(looks[one] - looks[other]) for one in looks for other in looks if one < other}
    assert {pair: round(float(far), 1) for pair, far in near.items() if far < 12} == {}
