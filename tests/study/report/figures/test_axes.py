"""One panel on its axes: everything that a panel holds can be found there again."""

from dataclasses import replace

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from emabank.study.report.figures.axes import draw_heat, draw_panel, draw_rate, key_of_line, keys_of_marks
from emabank.study.report.figures.style import SHADES
from emabank.study.report.panel import Line, Panel

X = np.arange(1, 6)
LIVE = Line(label="live weights", x=X, y=X * 10.0, std=np.full(5, 2.0), n=3, kind="live")
AVERAGE = Line(label="ema-1.8%", x=X, y=X * 11.0, n=1, order=2, dashed=True)


def axes():
    return Figure().add_subplot()


def test_lines_have_their_values_colours_and_dashes_and_bands_their_width():
    drawn = axes()
    draw_panel(drawn, Panel(title="digits", lines=[LIVE, AVERAGE]))
    live, average = drawn.lines
    np.testing.assert_array_equal(live.get_ydata(), LIVE.y)
    assert to_rgb(average.get_color()) == to_rgb(SHADES[2])
    assert average.is_dashed() and not live.is_dashed()
    (band,) = drawn.collections  # the line with one seed has none
    corners = band.get_paths()[0].vertices
    assert corners[:, 1].min() == 8 and corners[:, 1].max() == 52


def test_every_seed_is_a_thin_line_beneath_the_mean_and_then_there_is_no_band():
    seeds = np.stack([LIVE.y - 3, LIVE.y, LIVE.y + 3])
    drawn = axes()
    draw_panel(drawn, Panel(title="digits", lines=[replace(LIVE, seeds=seeds)]))
    *thin, mean = drawn.lines
    np.testing.assert_array_equal([line.get_ydata() for line in thin], seeds)
    assert all(line.get_linewidth() < mean.get_linewidth() and line.get_zorder() < mean.get_zorder() for line in thin)
    assert not drawn.collections


def test_limits_are_those_asked_for_or_those_of_the_epochs():
    drawn = axes()
    draw_panel(drawn, Panel(title="", lines=[LIVE], x_limits=(0, 100), y_limits=(-3, 7)))
    assert (drawn.get_xlim(), drawn.get_ylim()) == ((0, 100), (-3, 7))
    drawn = axes()
    draw_panel(drawn, Panel(title="", lines=[LIVE]))
    low, high = drawn.get_xlim()
    assert 0.9 < low < 1 and 5 < high < 5.1


def test_a_line_with_gaps_is_drawn_with_gaps():
    y = LIVE.y.copy()
    y[2] = np.nan
    drawn = axes()
    draw_panel(drawn, Panel(title="", lines=[Line(label="live weights", x=X, y=y, std=y, kind="live")]))
    assert np.isnan(drawn.lines[0].get_ydata()[2])
    assert np.isfinite(drawn.get_ylim()).all()


def test_marks_have_a_shape_each_and_an_entry_in_the_legend():
    panel = Panel(title="", lines=[LIVE], marks=[(2.0, 20.0, "one"), (3.0, 30.0, "other")])
    drawn = axes()
    draw_panel(drawn, panel)
    points = drawn.collections[1:]
    assert [point.get_offsets().tolist() for point in points] == [[[2.0, 20.0]], [[3.0, 30.0]]]
    keys = keys_of_marks(panel)
    assert [key.get_label() for key in keys] == ["one", "other"]
    assert len({key.get_marker() for key in keys}) == 2


def test_bars_are_as_wide_and_high_as_said_behind_lines_with_points():
    bars = [(20.0, 30.0, 25.0), (50.0, 40.0, 80.0)]
    drawn = axes()
    ideal = Line(label="perfectly calibrated", x=X, y=X, kind="ideal", dashed=True)
    draw_panel(drawn, Panel(title="", lines=[LIVE, ideal], bars=bars))
    assert [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in drawn.patches] == bars
    assert [line.get_marker() for line in drawn.lines] == ["o", "None"]
    assert max(bar.get_zorder() for bar in drawn.patches) < min(line.get_zorder() for line in drawn.lines)


def test_the_rate_begins_at_zero():
    drawn = axes()
    draw_rate(drawn, Line(label="learning rate", x=X, y=X / 10, kind="rate"))
    assert drawn.get_ylim()[0] == 0
    np.testing.assert_allclose(drawn.lines[0].get_ydata(), X / 10)


def test_a_heat_map_has_its_values_its_names_and_one_shape_for_its_marks():
    grid = np.arange(80.0).reshape(2, 40)
    grid[0, 3] = np.nan
    panel = Panel(title="", grid=grid, x_ticks=[str(i) for i in range(1, 41)], y_ticks=["fast", "slow"],
                  marks=[(39.0, 0.0, "fast: best at epoch 40"), (4.0, 1.0, "slow: best at epoch 5")])  # fmt: skip
    drawn = axes()
    image = draw_heat(drawn, panel, grid, limits=(0, 100))
    np.testing.assert_array_equal(image.get_array().filled(np.nan), grid)
    assert [text.get_text() for text in drawn.get_yticklabels()] == ["fast", "slow"]
    named = dict(zip(drawn.get_xticks(), (text.get_text() for text in drawn.get_xticklabels()), strict=True))
    assert named == {4: "5", 9: "10", 14: "15", 19: "20", 24: "25", 29: "30", 34: "35", 39: "40"}
    assert image.get_clim() == (0, 100) and keys_of_marks(panel) == []


def test_a_legends_entry_looks_as_the_line_does():
    drawn = axes()
    draw_panel(drawn, Panel(title="", lines=[AVERAGE]))
    key = key_of_line(AVERAGE)
    assert (key.get_label(), key.get_color()) == (AVERAGE.label, drawn.lines[0].get_color())
    assert key.is_dashed()
