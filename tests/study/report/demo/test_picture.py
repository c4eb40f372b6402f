"""The demo's figure, table and page: everything named, numbers as measured, the same bytes for the same record."""

import numpy as np
import pytest

from emabank.study.report.demo.picture import demo_figure, demo_page, demo_sheet
from emabank.study.report.figures.draw import draw


def test_the_figure_has_every_weights_with_both_kinds_of_statistics(record):
    figure = demo_figure(record)
    labels = ["live weights", "fast: half-life 2.0 steps", "slow: half-life 8.0 steps"]
    assert [[line.label for line in panel.lines] for panel in figure.panels] == [labels, labels]
    assert "40% of the training labels wrong" in figure.title
    for panel, kind in zip(figure.panels, ("averaged", "recomputed"), strict=True):
        for line, name in zip(panel.lines, ("live", "fast", "slow"), strict=True):
            rows = [row for row in record.rows if row.average == name and row.statistics in ("live", kind)]
            assert np.array_equal(line.x, [row.epoch for row in rows])
            assert np.allclose(line.y, [100 * row.test_accuracy for row in rows])
        assert panel.rate is not None
        assert list(panel.rate.y) == record.learning_rate


def test_the_point_is_what_validation_chose(record):
    chosen = next(each for each in record.chosen if each.average == record.best)
    averaged, recomputed = (panel.marks for panel in demo_figure(record).panels)
    assert averaged[0][:2] == (chosen.epoch, pytest.approx(100 * chosen.at_choice.test_accuracy))
    assert chosen.at_choice_recomputed is not None
    assert recomputed[0][1] == pytest.approx(100 * chosen.at_choice_recomputed.test_accuracy)


@pytest.mark.parametrize(("file_format", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_same_record_gives_the_same_bytes(record, tmp_path, file_format, start):
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        draw(demo_figure(record), path, file_format=file_format)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(start)


def test_the_table_has_what_was_measured_and_a_dash_for_what_was_not(record):
    rows = dict(demo_sheet(record).rows)
    for chosen in record.chosen:
        epoch, there, *_, end, _ = rows[chosen.average]
        assert epoch.text == str(chosen.epoch)
        assert there.mean == pytest.approx(100 * chosen.at_choice.test_accuracy)
        assert end.mean == pytest.approx(100 * chosen.at_end.test_accuracy)
        assert there.best == (chosen.average == record.best)
    assert rows["live"][2].text == "–", "the live weights have their own statistics"


def test_the_page_says_what_to_ship_and_how_it_was_obtained(record):
    text = demo_page(record)
    assert f"Ship {record.best}" in text
    assert "emabank demo" in text
    assert text == demo_page(record)
