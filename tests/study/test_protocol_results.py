"""What a protocol leaves: nothing is trained twice, and every row and table is what the runs say."""

import json
import shutil
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from emabank.study import load_results
from emabank.study.config import TrainingConfig
from emabank.study.protocol import (
    Protocol,
)
from emabank.study.report.results import read_setting
from emabank.study.runs.reader import RunFolder
from emabank.study.train import Interrupted
from emabank.study.transfer import linear_evaluation
from tests.study.small_protocols import DIGITS, EVERYTHING, Here, Net, protocol, without_batchnorm

KEY = ["run", "weights", "batchnorm", "selected_by", "epoch", "split", "metric", "other"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Protocol, Here]:
    """A protocol with everything switched on but transfer, which takes longer than all the rest."""
    here = Here(tmp_path_factory.mktemp("finished"))
    return here.carry_out(EVERYTHING), here


# Nothing is trained twice --------------------------------------------------------------------------------------------


def left(runs: Path) -> dict[str, Any]:
    """All that a protocol leaves, but for times and conditions."""
    found: dict[str, Any] = {}
    for path in sorted(runs.rglob("*")):
        name = path.relative_to(runs).as_posix()
        if path.suffix in (".jsonl", ".npz") or path.name in ("summary.json", "history.json"):
            found[name] = path.read_bytes()
        if path.suffix == ".safetensors":  # the order of what is noted in such a file is not always the same
            tensors, notes = RunFolder(path.parents[1]).load_snapshot(path.stem)
            found[name] = notes, {key: tensor.tolist() for key, tensor in tensors.items()}
        if path.name == "done.json":
            found[name] = json.loads(path.read_text())["summary"]
    return found


def test_carried_out_again_it_trains_nothing_and_says_the_same(finished: tuple[Protocol, Here], tmp_path: Path):
    done, before = finished
    again = Here(tmp_path / "runs")
    shutil.copytree(before.place.runs, again.place.runs)
    assert again.carry_out(EVERYTHING).summary == done.summary
    assert again.trained == []
    assert left(again.place.runs) == left(before.place.runs)
    runs = [path.parent for path in again.place.runs.glob("*/done.json")]
    assert len(runs) == len(before.trained) == 4 + 2 + 2
    assert all(len(RunFolder(run).environment()) == 1 for run in runs), "each was opened for training once"


def test_two_protocols_that_need_the_same_runs_share_them(finished: tuple[Protocol, Here], tmp_path: Path):
    done, before = finished
    here = Here(tmp_path / "runs")
    shutil.copytree(before.place.runs, here.place.runs)
    less = replace(EVERYTHING, seeds=1, swa=False)
    assert here.carry_out(less).choices == done.choices[:1]
    assert here.trained == []
    other_rate = replace(less, rates=(done.choices[0].rate, 0.001))
    assert here.carry_out(other_rate).choices == done.choices[:1]
    assert [(job.config.rate, job.config.trained_on) for job in here.trained] == [(0.001, "80%")]


def test_interrupted_again_and_again_it_goes_on_and_ends_the_same(tmp_path: Path):
    """In the middle of a run each time: in tuning, in a refit, in SWA."""
    config = protocol(rates=(0.1,))
    undisturbed = Here(tmp_path / "undisturbed", make_model=without_batchnorm)
    undisturbed.carry_out(config)
    assert len(undisturbed.trained) == 2 + 2 + 2
    for last, kind in ((1, ("80%", False)), (2, ("100%", False)), (2, ("100%", True))):
        interrupted = Here(tmp_path / "interrupted", make_model=without_batchnorm, last=last)
        with pytest.raises(Interrupted):
            interrupted.carry_out(config)
        stopped = interrupted.trained[-1].config
        assert (stopped.trained_on, stopped.swa) == kind
        assert not list((tmp_path / "interrupted").glob("protocol-*"))
    resumed = Here(tmp_path / "interrupted", make_model=without_batchnorm)
    resumed.carry_out(config)
    assert len(resumed.trained) == 1
    assert left(tmp_path / "interrupted") == left(tmp_path / "undisturbed")


def test_another_configuration_data_or_model_is_another_protocol(tmp_path: Path):
    config = protocol(training=TrainingConfig(network="own", epochs=1, batch=80), seeds=1, rates=(0.1,), swa=False)
    folders = {Here(tmp_path, make_model=without_batchnorm).carry_out(config).folder}
    folders.add(Here(tmp_path, make_model=without_batchnorm, garbage=True).carry_out(config).folder)
    here = Here(tmp_path, make_model=without_batchnorm)
    folders.add(here.carry_out(config, model_fingerprint="another").folder)
    folders.add(here.carry_out(replace(config, rates=(0.2,))).folder)
    assert len(folders) == 4


# What it leaves ------------------------------------------------------------------------------------------------------


def test_every_measure_has_its_rows_on_its_splits(finished: tuple[Protocol, Here]):
    done, here = finished
    frame = load_results(here.place.runs)
    chosen = frame[frame.selected_by.notna()]
    tuned, refitted = {run.id for run in done.tuned}, {run.id for run in done.refitted}
    for runs, splits in ((tuned, {"train", "val", "test"}), (refitted, {"train", "test"})):
        mine = chosen[chosen.run.isin(runs)]
        assert set(mine.seed) == {0, 1}
        for metric in ("accuracy", "loss", "ece"):
            assert set(mine[mine.metric == metric].split) == splits
        for metric in ("memorised", "clean_accuracy"):
            assert set(mine[mine.metric == metric].split) == {"train"}
        for metric in ("churn", "js"):
            rows = mine[mine.metric == metric]
            assert set(rows.split) == splits - {"train"}
            assert set(rows.other) <= runs
        assert mine[~mine.metric.isin(["churn", "js"])].other.isna().all()
    of = chosen.set_index("run")
    assert set(of.loc[list(tuned)].query("metric == 'temperature'").split) == {"val"}
    assert set(of.loc[list(tuned)].query("metric == 'ece_ts'").split) == {"train", "val", "test"}
    assert set(of.loc[list(refitted)].query("metric in ('temperature', 'ece_ts')").split) == {"test"}
    assert set(chosen[chosen.run.isin([run.id for run in done.swa])].weights) == {"live", "swa"}


def test_every_row_of_an_epoch_and_every_test_curve_is_there_once(finished: tuple[Protocol, Here]):
    done, here = finished
    frame = load_results(here.place.runs)
    assert not frame.duplicated(KEY).any()
    curves = frame[frame.selected_by.isna()]
    names = {"live", *EVERYTHING.averages.names}
    refit = done.refitted[0].id
    for run, split in [(done.tuned[0].id, "val"), (refit, "train"), (refit, "test")]:
        mine = curves[(curves.run == run) & (curves.split == split) & (curves.metric == "accuracy")]
        assert sorted(zip(mine.epoch, mine.weights, strict=True)) == sorted((e, n) for e in range(1, 5) for n in names)
    assert set(curves[curves.trained_on == "80%"].split) == {"val"}, "the rest is for figures"


def test_transfer_rows_are_the_linear_evaluation_of_what_claims_compare(tmp_path: Path):
    done = Here(tmp_path).carry_out(protocol(rates=(0.1,), seeds=1, transfer=("digits",)))
    frame = load_results(tmp_path)
    rows = frame[frame.metric == "transfer:digits"]
    assert set(rows.split) == {"test"} and rows.selected_by.notna().all()
    assert rows.run.value_counts().to_dict() == {run.id: 6 for run in done.refitted}
    [value] = rows[(rows.run == done.refitted[0].id) & (rows.weights == "live") & (rows.selected_by == "last")].value
    tensors, notes = done.refitted[0].load_snapshot("live-last")
    model = Net()
    model.load_state_dict(tensors)
    model.eval()
    with torch.no_grad():
        features, others = (
            model.features((part.images.float() - torch.tensor(notes["mean"])) / torch.tensor(notes["std"]))
            for part in (DIGITS.train, DIGITS.test)
        )
    logits = linear_evaluation(features, DIGITS.train.labels, others, classes=10, seed=0)
    expected = float((logits.argmax(1) == DIGITS.test.labels.numpy()).mean())
    assert value == pytest.approx(expected, abs=0.005)
    assert expected > 0.7
    columns = read_setting(done.folder).columns
    (sgd,) = [column for column in columns if (column.trained_on, column.title) == ("100%", "SGD")]
    assert sgd.values["transfer:digits"] == [value]


def test_the_results_have_the_columns_of_the_method(finished: tuple[Protocol, Here]):
    summary = json.loads((finished[0].folder / "summary.json").read_text())
    assert summary.pop("checksum").startswith("crc32:")
    assert summary.pop("rows_checksum") == zlib.crc32((finished[0].folder / "rows.jsonl").read_bytes())
    assert summary == json.loads(json.dumps(finished[0].summary))
    titles: dict[tuple[str, str], list[str]] = {}
    columns = read_setting(finished[0].folder).columns
    for column in columns:
        titles.setdefault((column.trained_on, column.split), []).append(column.title)
    averages = ["EMA (acc.)", "EMA (loss)", "slowest (acc.)", "slowest (loss)"]
    averages += ["EMA (acc., noisy)", "EMA (loss, noisy)", "SGD (best, noisy)"]
    assert titles == {
        ("80%", "val"): ["SGD", "SGD (last)", *averages],
        ("80%", "test"): ["SGD", "SGD (last)", *averages],
        ("100%", "test"): ["SGD", "SGD (best)", *averages, "SWA"],
    }
    live = {(each.trained_on, each.title): each.epochs for each in columns if each.title.startswith("SGD")}
    best = [choice.live_epoch for choice in finished[0].choices]
    noisy = [choice.noisy_live_epoch for choice in finished[0].choices]
    assert live == {("80%", "SGD"): best, ("80%", "SGD (last)"): [4, 4], ("80%", "SGD (best, noisy)"): noisy,
                    ("100%", "SGD"): [4, 4], ("100%", "SGD (best)"): best,
                    ("100%", "SGD (best, noisy)"): noisy}  # fmt: skip


def test_the_columns_are_the_rows(finished: tuple[Protocol, Here]):
    done, here = finished
    frame = load_results(here.place.runs)
    kept = {"EMA (acc.)": ("averaged", "accuracy"), "slowest (loss)": ("recomputed", "loss"), "SGD": ("own", "last")}
    columns = {each.title: each for each in read_setting(done.folder).columns if each.trained_on == "100%"}
    for title, (batchnorm, selected_by) in kept.items():
        mine = frame[(frame.batchnorm == batchnorm) & (frame.selected_by == selected_by)]
        for metric in ("accuracy", "loss", "ece", "ece_ts", "memorised", "clean_accuracy"):
            split = "train" if metric in ("memorised", "clean_accuracy") else "test"
            numbers = mine[(mine.metric == metric) & (mine.split == split)].set_index("run").value
            values = [numbers[run.id] for run in done.refitted]
            assert columns[title].values[metric] == values
