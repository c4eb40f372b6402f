"""The demo: files, output, data and reproducibility."""

import io
import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from emabank.study.commands.studies import DemoArguments
from emabank.study.config import AveragesConfig
from emabank.study.data.loader import Loader
from emabank.study.demo import demo_parts, run_demo
from emabank.study.report.demo import Measured, Record, Selected, closing_line, demo_figure, demo_table

NAMES = AveragesConfig().names


def demo(out: Path, **settings) -> tuple[Record, str]:
    console = Console(file=io.StringIO(), width=80)
    record = run_demo(DemoArguments(out=out, **{"epochs": 2, **settings}), console)
    return record, console.file.getvalue()


@pytest.fixture(scope="module")
def short_run(tmp_path_factory) -> tuple[Record, str, Path]:
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    return *demo(out), out


def test_demo_writes_the_page_figure_and_rows_and_prints_where(short_run):
    record, output, out = short_run
    assert "epoch 2/2" in output and all(name in output for name in ("live", *NAMES))
    assert f"Open {(out / 'index.html').resolve().as_uri()} " in output
    assert sorted(path.name for path in out.iterdir()) == ["curves.pdf", "curves.svg", "index.html", "rows.json"]
    assert json.loads((out / "rows.json").read_text()) == json.loads(json.dumps(asdict(record)))


def test_every_measurement_has_one_row(short_run):
    rows = short_run[0].rows
    places = {(row.epoch, row.average, row.statistics) for row in rows}
    expected = {(epoch, "live", "live") for epoch in (1, 2)}
    expected |= {(e, name, kind) for e in (1, 2) for name in NAMES for kind in ("averaged", "recomputed")}
    assert places == expected
    assert len(rows) == len(places)
    for row in rows:
        assert all(0 <= share <= 1 for share in (row.validation_accuracy, row.test_accuracy))
        assert row.memorised is None if row.statistics == "recomputed" else 0 <= row.memorised <= 1


def test_the_choice_is_made_on_validation_with_averaged_statistics(short_run):
    record = short_run[0]
    selectable = [row for row in record.rows if row.statistics != "recomputed"]
    for chosen in record.chosen:
        mine = [row for row in selectable if row.average == chosen.average]
        # Of equal rows max() returns the first: the earliest epoch.
        assert chosen.at_choice == max(mine, key=lambda row: row.validation_accuracy)
        assert chosen.at_end == mine[-1]
    assert record.best == max(selectable, key=lambda row: row.validation_accuracy).average


def test_the_same_seed_gives_the_same_numbers_and_the_same_figure(short_run, tmp_path):
    record, _, out = short_run
    torch.manual_seed(99)
    before = torch.get_rng_state()
    again, _ = demo(tmp_path)
    assert again.rows == record.rows
    assert (tmp_path / "curves.svg").read_bytes() == (out / "curves.svg").read_bytes()
    assert torch.equal(torch.get_rng_state(), before), "the caller's random state is unchanged"


def test_another_seed_gives_other_rows_and_without_noise_nothing_is_memorised(short_run, tmp_path):
    record, output = demo(tmp_path, seed=1, noise=0.0, epochs=1)
    assert record.rows != short_run[0].rows
    assert {row.memorised for row in record.rows} == {None}
    assert "0% of them with a wrong label" in output


def test_validation_and_test_digits_are_disjoint_balanced_and_correctly_labelled():
    parts = demo_parts(DemoArguments())
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [1297, 250, 250]
    images = torch.cat([part.images for part in (parts.train, parts.validation, parts.test)]).flatten(1)
    assert len(images.unique(dim=0)) == 1797, "no image is in two parts"
    difference = parts.validation.labels.bincount(minlength=10) - parts.test.labels.bincount(minlength=10)
    assert difference.abs().max() <= 1
    assert not parts.validation.wrong.any() and not parts.test.wrong.any()


def test_wrong_labels_are_spread_over_an_epoch():
    """If both used one random stream, the first batches would have only wrong labels."""
    parts = demo_parts(DemoArguments())
    loader = Loader(parts.train, size=128, normalisation=parts.normalisation, seed=0)
    wrong = parts.train.images[parts.train.wrong].flatten(1)
    marked = {tuple(image) for image in wrong.tolist()}
    std, mean = parts.normalisation.std[0], parts.normalisation.mean[0]
    for inputs, _ in loader:
        pixels = (inputs * std + mean).round().int().flatten(1).tolist()
        share = sum(tuple(image) in marked for image in pixels) / len(pixels)
        assert 0.2 < share < 0.6


# Table, figure and closing line ---------------------------------------------------------------------------------------


def row(epoch: int, average: str, statistics, accuracy: float) -> Measured:
    return Measured(
        epoch=epoch,
        average=average,
        statistics=statistics,
        validation_accuracy=accuracy - 0.05,
        test_accuracy=accuracy,
        memorised=epoch / 10,
    )


@pytest.fixture
def record() -> Record:
    """Three epochs; the slow average is best, at epoch 2."""
    live = [row(epoch, "live", "live", accuracy) for epoch, accuracy in ((1, 0.5), (2, 0.75), (3, 0.625))]
    rows, chosen = list(live), [
        Selected(average="live", half_life=None, epoch=2, at_choice=live[1], at_choice_recomputed=None, at_end=live[2])
    ]  # fmt: skip
    for name, half_life, accuracies in (("fast", 2.0, (0.5, 0.8, 0.625)), ("slow", 8.0, (0.25, 0.875, 0.75))):
        averaged = [row(epoch, name, "averaged", accuracy) for epoch, accuracy in enumerate(accuracies, 1)]
        recomputed = [row(epoch, name, "recomputed", accuracy + 0.0625) for epoch, accuracy in enumerate(accuracies, 1)]
        rows += averaged + recomputed
        chosen.append(
            Selected(
                average=name,
                half_life=half_life,
                epoch=2,
                at_choice=averaged[1],
                at_choice_recomputed=recomputed[1],
                at_end=averaged[2],
            )
        )
    return Record(conditions={"noise": 0.4}, learning_rate=[0.4, 0.8, 0.0], best="slow", chosen=chosen, rows=rows)


def test_the_figure_marks_the_choice_of_validation(record):
    chosen = next(chosen for chosen in record.chosen if chosen.average == record.best)
    averaged, recomputed = (panel.marks for panel in demo_figure(record).panels)
    assert averaged[0][:2] == (chosen.epoch, pytest.approx(100 * chosen.at_choice.test_accuracy))
    assert chosen.at_choice_recomputed is not None
    assert recomputed[0][1] == pytest.approx(100 * chosen.at_choice_recomputed.test_accuracy)


def test_the_table_has_every_measurement_and_a_dash_for_missing_ones(record):
    rows = {row.label: [cell.text for cell in row.cells] for row in demo_table(record).rows}
    assert rows == {
        "live": ["2", "70.0", "75.0", "–", "20.0", "62.5", "30.0"],
        "fast": ["2", "75.0", "80.0", "86.2", "20.0", "62.5", "30.0"],
        "slow": ["2", "82.5", "87.5", "93.8", "20.0", "75.0", "30.0"],
    }
    best = [row.label for row in demo_table(record).rows if row.cells[2].best]
    assert best == [record.best]


@pytest.mark.parametrize(
    ("best", "pattern"),
    [
        ("slow", "slow of epoch 2: 87.5% on the test images.* live weights 75.0% .* epoch 2 and 62.5% at the end"),
        ("live", "chose the live weights .*: 75.0% on the test images at epoch 2, 62.5% at the end"),
    ],
)
def test_the_closing_line_compares_the_choice_with_the_live_weights(record, best, pattern):
    assert re.search(pattern, closing_line(replace(record, best=best)))


def test_the_table_has_dashes_for_memorised_without_wrong_labels(record):
    chosen = [replace(row, at_choice=replace(row.at_choice, memorised=None)) for row in record.chosen]
    assert {row.cells[4].text for row in demo_table(replace(record, chosen=chosen)).rows} == {"–"}
