"""The demo: files, output, data and reproducibility."""

import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from emabank.study.commands.studies import DemoArguments
from emabank.study.config import AveragesConfig
from emabank.study.data.loader import Loader
from emabank.study.demo import demo_parts, run_demo
from emabank.study.report.demo import Record, closing_line, demo_figure, demo_table

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
    assert {row.cells[4].text for row in demo_table(record).rows} == {"–"}
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


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


@pytest.mark.parametrize("best", ["live", NAMES[1]])
def test_table_figure_and_closing_line_show_the_choice_of_validation(short_run, best):
    first = {row.average: row for row in short_run[0].rows if row.epoch == 1 and row.statistics != "recomputed"}
    chosen = [replace(selected, at_end=first[selected.average]) for selected in short_run[0].chosen]
    record = replace(short_run[0], best=best, chosen=chosen)
    by_name = {selected.average: selected for selected in chosen}
    rows = {row.label: row.cells for row in demo_table(record).rows}
    assert list(rows) == list(by_name) == ["live", *NAMES]
    for name, selected in by_name.items():
        at_choice, recomputed, at_end = selected.at_choice, selected.at_choice_recomputed, selected.at_end
        assert at_choice != at_end and (recomputed is None) == (name == "live")
        shares = [at_choice.validation_accuracy, at_choice.test_accuracy, recomputed and recomputed.test_accuracy]
        shares += [at_choice.memorised, at_end.test_accuracy, at_end.memorised]
        assert [cell.text for cell in rows[name]] == [str(selected.epoch), *map(percent, shares)]
        assert rows[name][2].best == (name == best)

    for panel, statistics in zip(demo_figure(record).panels, ("averaged", "recomputed"), strict=True):
        kinds, epoch = ("live", statistics), by_name[best].epoch
        [row] = [r for r in record.rows if (r.average, r.epoch) == (best, epoch) and r.statistics in kinds]
        assert panel.marks[0][:2] == (epoch, pytest.approx(100 * row.test_accuracy))

    live, line = by_name["live"], closing_line(record)
    reached = f"{percent(by_name[best].at_choice.test_accuracy)}% on the test images"
    of_live, at_end = percent(live.at_choice.test_accuracy), percent(live.at_end.test_accuracy)
    if best == "live":
        assert f": {reached} at epoch {live.epoch}, {at_end}% at the end" in line
    else:
        assert f"{best} of epoch {by_name[best].epoch}: {reached}; the live weights {of_live}% " in line
        assert f"epoch {live.epoch} and {at_end}% at the end" in line
