"""The figure: both formats, everything named, the same bytes for the same rows."""

import pytest

from emabank.study.report.curves import draw_curves


def test_the_figure_names_every_average_and_both_kinds_of_statistics(record, tmp_path):
    draw_curves(record, tmp_path / "curves.svg", file_format="svg")
    text = (tmp_path / "curves.svg").read_text()
    for words in ("live weights", "fast: half-life 2.0 steps", "slow: half-life 8.0 steps", "recomputed", "40%"):
        assert words in text


@pytest.mark.parametrize(("file_format", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_same_rows_give_the_same_bytes(record, tmp_path, file_format, start):
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        draw_curves(record, path, file_format=file_format)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(start)


def test_drawing_leaves_the_settings_of_matplotlib_alone(record, tmp_path):
    from matplotlib import rcParams

    before = dict(rcParams)
    draw_curves(record, tmp_path / "curves.png", file_format="png")
    assert dict(rcParams) == before
