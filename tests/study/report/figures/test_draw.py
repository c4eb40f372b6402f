"""Files: the same bytes for the same figure, text as text, and nothing on top of anything else."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from emabank.study.report.figures.all import figures
from emabank.study.report.figures.draw import DPI, draw, picture
from emabank.study.report.panel import Figure, Line, Panel
from tests.study.report.made_evidence import made_evidence, made_setting

LONG = "CIFAR-10N (worse labels), 4,000 images, ResNet-8 of width 24, with flips alone"
X = np.arange(1, 21)
NAMES = ["dynamics/cifar100-resnet18", "dynamics/early", "batchnorm/decays", "batchnorm/heatmap",
         "label-noise/accuracy", "label-noise/memorisation", "constant-lr/accuracy", "step-decay/accuracy",
         "bootstrap/accuracy", "lr-search/curves", "calibration/reliability", "sampling-period/accuracy"]  # fmt: skip


@cache
def made() -> dict[str, Figure]:
    """A figure of each kind, with titles short and long; of each pair that the studies are about, one setting."""
    pairs = ("cifar100-resnet18", "cifar100-wrn-28-10", "cifar100n-resnet34", "cifar10n-resnet34", "cifar100n-resnet18")
    settings = [made_setting(pair) for pair in pairs]
    settings[1], settings[3] = (replace(settings[i], title=LONG) for i in (1, 3))
    return {figure.name.removeprefix("demo/"): figure for figure in figures(made_evidence(*settings))}


def small(**changes) -> Figure:
    lines = [Line(label="live weights", x=X, y=X * 2.0, std=X / 9, n=3, kind="live"),
             Line(label="ema-7.1%", x=X, y=X * 3.0, n=3, order=4)]  # fmt: skip
    rate = Line(label="learning rate", x=X, y=1 / X, kind="rate")
    panel = Panel(title="digits", lines=lines, rate=rate, marks=[(3.0, 9.0, "chosen on validation")])
    return replace(Figure(name="demo/small", title="A small figure", panels=[panel]), **changes)


# Files ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lines", "batchnorm/heatmap"])
@pytest.mark.parametrize(("file_format", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_same_figure_gives_the_same_bytes(tmp_path, name, file_format, start):
    figure = small() if name == "lines" else made()[name]
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        draw(figure, path, file_format=file_format)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(start)


def test_control_another_figure_gives_other_bytes(tmp_path):
    draw(small(), tmp_path / "one.png")
    draw(small(title="Another title"), tmp_path / "other.png")
    assert (tmp_path / "one.png").read_bytes() != (tmp_path / "other.png").read_bytes()


def test_an_svg_holds_what_the_figure_says_as_text(tmp_path):
    draw(made()["label-noise/memorisation"], tmp_path / "figure.svg", file_format="svg")
    root = ElementTree.parse(tmp_path / "figure.svg").getroot()
    said = " ".join("".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text"))
    figure = made()["label-noise/memorisation"]
    panel = figure.panels[0]
    expected = [figure.title, panel.title, panel.x_label, panel.y_label, panel.marks[0][2], panel.marks[1][2], LONG]
    for words in [*expected, *(line.label for line in panel.lines), "mean of 3 seeds"]:
        assert re.sub(r"\s+", " ", words) in re.sub(r"\s+", " ", said)


def test_a_png_has_the_size_of_the_picture_and_the_width_of_its_columns(tmp_path):
    for columns, inches in ((1, 8.0), (2, 11.0)):
        figure = small(panels=small().panels * 2, columns=columns)
        draw(figure, tmp_path / "figure.png")
        width, height = picture(figure).get_size_inches()
        assert width == inches
        with Image.open(tmp_path / "figure.png") as image:
            assert image.size == (round(DPI * width), pytest.approx(DPI * height, abs=1))


def test_the_folder_is_made(tmp_path):
    draw(small(), tmp_path / "demo" / "dynamics" / "small.png")
    assert (tmp_path / "demo" / "dynamics" / "small.png").is_file()


def test_another_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match="file_format is 'gif'; give 'png' or 'svg'"):
        draw(small(), tmp_path / "figure.gif", file_format="gif")


def test_drawing_leaves_the_settings_of_matplotlib_and_the_figure_alone(tmp_path):
    before, figure = dict(rcParams), small()
    draw(figure, tmp_path / "figure.png")
    assert dict(rcParams) == before
    assert figure.panels[0].title == "digits" and figure.panels[0].marks == [(3.0, 9.0, "chosen on validation")]


# Where things stand --------------------------------------------------------------------------------------------------


def boxes_of(shown):
    """Every title, label, legend and pair of axes with its box on the canvas."""
    renderer = FigureCanvasAgg(shown)
    renderer.draw()
    found = [("the title", shown._suptitle.get_window_extent())] if shown._suptitle else []
    found += [("the legend", legend.get_window_extent()) for legend in shown.legends]
    for number, axes in enumerate(shown.axes):
        if axes.get_legend() is not None:
            found.append((f"legend {number}", axes.get_legend().get_window_extent()))
        if not axes.axison:
            continue
        found.append((f"axes {number}", axes.get_window_extent()))
        texts = [axes.xaxis.label, axes.yaxis.label, axes._left_title, *ticks_of(axes.xaxis), *ticks_of(axes.yaxis)]
        found += [(f"{text.get_text()!r} of axes {number}", text.get_window_extent())
                  for text in texts if text.get_text() and text.get_visible()]  # fmt: skip
    return found


def ticks_of(axis):
    """The labels of ticks within the limits: matplotlib makes some more, and does not draw them."""
    low, high = sorted(axis.get_view_interval())
    return [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]


def overlaps(shown) -> list[str]:
    """What lies on top of something else, or outside of the canvas."""
    found, canvas = boxes_of(shown), shown.bbox
    wrong = [f"{one} and {other}" for (one, a), (other, b) in combinations(found, 2) if _overlap(a, b)]
    return wrong + [f"{name} leaves the canvas" for name, box in found
                    if box.x0 < -1 or box.y0 < -1 or box.x1 > canvas.x1 + 1 or box.y1 > canvas.y1 + 1]  # fmt: skip


def _overlap(a, b) -> bool:
    return min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1


@pytest.mark.parametrize("name", NAMES)
def test_nothing_lies_on_top_of_anything_else(name):
    assert overlaps(picture(made()[name])) == []


def test_legends_that_panels_cannot_share_stand_beneath_each():
    panels = [Panel(title="one", lines=[Line(label="rate 0.4", x=X, y=X, order=order)]) for order in (0, 3)]
    shown = picture(Figure(name="demo/x", title="Two meanings of one label", panels=panels, columns=2))
    assert overlaps(shown) == [] and not shown.legends
    assert sum(axes.get_legend() is not None for axes in shown.axes) == 2


def test_control_an_overlap_is_seen():
    figure = small(panels=small().panels * 2, columns=2)
    shown = picture(figure)
    shown.axes[0].set_title(LONG * 2, loc="left")
    assert any(each.startswith(f"{LONG * 2!r} of axes 0") for each in overlaps(shown))
    shown = picture(figure)
    shown.axes[0].legend(handles=[shown.axes[0].lines[0]], loc="center")
    assert any("legend 0" in each and "axes 0" in each for each in overlaps(shown))


def test_panels_that_are_compared_stand_at_one_height():
    axes = picture(made()["batchnorm/decays"]).axes
    FigureCanvasAgg(axes[0].figure).draw()
    left, right = axes[0].get_window_extent(), axes[2].get_window_extent()
    assert (left.y0, left.y1) == (pytest.approx(right.y0), pytest.approx(right.y1))


def test_a_heat_maps_panels_share_their_colours_and_one_bar_names_them():
    shown = picture(made()["batchnorm/heatmap"])
    images = [axes.images[0] for axes in shown.axes if axes.images]
    grids = np.stack([panel.grid for panel in made()["batchnorm/heatmap"].panels])
    assert {image.get_clim() for image in images} == {(grids.min(), grids.max())}
    assert len(shown.axes) == 3
    FigureCanvasAgg(shown).draw()
    assert shown.axes[-1].get_yticklabels()[1].get_text().endswith("%")


def test_the_learning_rate_has_axes_of_its_own_beneath_with_the_same_epochs():
    shown = picture(small())
    main, rate = shown.axes[:2]
    FigureCanvasAgg(shown).draw()
    assert rate.get_window_extent().y1 <= main.get_window_extent().y0
    assert rate.get_xlim() == main.get_xlim() and rate.get_ylabel() == "learning\nrate"
    assert (main.get_xlabel(), rate.get_xlabel()) == ("", "epoch")


def test_spread_and_n_stand_in_the_legend():
    def title(n: int) -> str:
        lines = [replace(line, n=n) for line in small().panels[0].lines]
        shown = picture(small(panels=[replace(small().panels[0], lines=lines)]))
        return shown.legends[0].get_title().get_text()

    assert title(3) == "mean of 3 seeds, band: one standard deviation over them"
    assert title(1) == "one seed"
