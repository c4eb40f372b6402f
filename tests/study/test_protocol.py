"""The protocol: its choices, runs and rows; no run is trained twice."""

import json
import math
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from emabank.study import load_results
from emabank.study.config import (
    AveragesConfig,
    DataConfig,
    HardwareConfig,
    MeasuringConfig,
    Place,
    ProtocolConfig,
    TrainingConfig,
)
from emabank.study.data.digits import digits_dataset
from emabank.study.data.images import Dataset, fingerprint, make_images
from emabank.study.executors import Outcome
from emabank.study.protocol import (
    Choice,
    Protocol,
    choose,
    held_from,
    refit_job,
    tuning_jobs,
)
from emabank.study.report.results import read_setting
from emabank.study.run_job import Job, folder_of, run_job, task_of
from emabank.study.runs.reader import RunFolder
from emabank.study.runs.rows import read_rows
from emabank.study.schedules import Schedule
from emabank.study.studies.catalogue import Setting
from emabank.study.studies.scheduler import run_setting
from emabank.study.train import Interrupted
from emabank.study.transfer import linear_evaluation
from tests.study.small_runs import files_in

KEY = ["run", "weights", "batchnorm", "selected_by", "epoch", "split", "metric", "other"]


DIGITS = digits_dataset()


class Net(nn.Module):
    """A small network with batch norm, and with features for a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(4 * 36, 10)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


def without_batchnorm() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def small_digits(*, random_test: bool = False) -> Dataset:
    """160 training digits and 60 test digits, or test images and labels drawn at random."""
    test = make_images(DIGITS.test.images[:60], DIGITS.test.labels[:60])
    if random_test:
        generator = torch.Generator().manual_seed(1)
        pixels = torch.randint(0, 17, test.images.shape, generator=generator, dtype=torch.uint8)
        test = make_images(pixels, torch.randint(0, 10, (60,), generator=generator))
    return Dataset("small", 10, make_images(DIGITS.train.images[:160], DIGITS.train.labels[:160]), test)


def protocol(**changes: Any) -> ProtocolConfig:
    """A protocol of a few seconds."""
    small: dict[str, Any] = {
        "data": DataConfig(dataset="own"),
        "training": TrainingConfig(network="own", epochs=4, batch=40),
        "hardware": HardwareConfig(device="cpu"),
        "rates": (0.05, 0.2),
        "seeds": 2,
    }
    return ProtocolConfig(**{**small, **changes}).completed()


class Runner:
    """Runs jobs in this process, records which it trained, and interrupts every run after the first `last`."""

    def __init__(self, runs: Path, *, make_model: Any = Net, random_test: bool = False, last: int = 10**9) -> None:
        self.place = Place(runs=runs)
        self.dataset = small_digits(random_test=random_test)
        self.make_model, self.last = make_model, last
        self.trained: list[Job] = []

    def __call__(self, jobs: Sequence[Job], **counted: int) -> dict[str, Outcome]:
        return {self.run(job).id: Outcome(task=task_of(job, self.place), state="done") for job in jobs}

    def run(self, job: Job) -> RunFolder:
        if not folder_of(job.config, self.place).is_done():
            self.trained.append(job)
        steps = iter(range(10**9))
        is_interrupted = len(self.trained) > self.last

        def should_stop() -> bool:
            return is_interrupted and next(steps) == 2

        return run_job(job, self.place, self.dataset, make_model=self.make_model, should_stop=should_stop)

    def run_protocol(self, config: ProtocolConfig, **more: Any) -> Protocol:
        setting = Setting(name="own", config=config, make_model=self.make_model, **more)
        return run_setting(setting, self.place, dataset=self.dataset, run_jobs=self, say=lambda sentence: None)


EVERYTHING = protocol(
    data=DataConfig(dataset="own", noise=0.3),
    measuring=MeasuringConfig(on_train=True, test_curves=True),
)


Finished = tuple[Protocol, Runner]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A protocol with everything but transfer, which takes longer than all the rest."""
    runner = Runner(tmp_path_factory.mktemp("finished"))
    return runner.run_protocol(EVERYTHING), runner


# The choice ----------------------------------------------------------------------------------------------------------


def make_run(folder: Path, value: float, *, noisy: float | None = None, epoch: int = 1) -> RunFolder:
    """A finished tuning run with nothing but a summary."""
    best = {"average": "ema-1.8%", "epoch": epoch, "value": 0.5}
    chosen = {"live": {"epoch": epoch, "value": value}, "accuracy": best, "loss": best}
    if noisy is not None:
        chosen["noisy-live"] = {"epoch": epoch, "value": noisy}
    folder.mkdir()
    (folder / "done.json").write_text(json.dumps({"files": {}, "summary": {"diverged": False, "chosen": chosen}}))
    return RunFolder(folder)


@settings(max_examples=30)
@given(values=st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4]), min_size=1, max_size=6))
def test_the_first_rate_with_the_best_live_accuracy_is_chosen(
    tmp_path_factory: pytest.TempPathFactory, values: list[float]
):
    folder = tmp_path_factory.mktemp("runs")
    rates = [0.1 * (i + 1) for i in range(len(values))]
    runs = [make_run(folder / str(i), value, epoch=i + 1) for i, value in enumerate(values)]
    first_best = sorted(range(len(values)), key=lambda i: (-values[i], i))[0]
    choice = choose(7, rates, runs)
    assert (choice.seed, choice.rate, choice.run) == (7, rates[first_best], str(first_best))
    assert choice.live_epoch == first_best + 1
    assert choice.averages == dict.fromkeys(("accuracy", "loss"), ("ema-1.8%", first_best + 1))


def test_a_diverging_rate_is_not_chosen(tmp_path: Path):
    runner = Runner(tmp_path, make_model=without_batchnorm)
    done = runner.run_protocol(protocol(rates=(1e20, 0.1), seeds=1, swa=False))
    assert [folder_of(job.config, runner.place).summary()["diverged"] for job in runner.trained] == [True, False, False]
    assert done.choices[0].rate == 0.1
    with pytest.raises(ValueError, match="diverged at every learning rate"):
        runner.run_protocol(protocol(rates=(1e20,), seeds=1, swa=False))


def test_choosing_reads_only_the_validation_summaries(finished: Finished, monkeypatch: pytest.MonkeyPatch):
    done, runner = finished
    runs = [folder_of(job.config, runner.place) for job in tuning_jobs(EVERYTHING, data=done.summary["data"])]
    assert all(run.is_done() for run in runs)
    read: list[str] = []

    def refuse(*_: Any) -> Any:
        raise AssertionError("a choice may read summaries only")

    for name in ("rows", "load_predictions", "load_snapshot", "predictions", "history", "fork_path"):
        monkeypatch.setattr(RunFolder, name, refuse)
    read_text = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self, **kwargs: read.append(self.name) or read_text(self, **kwargs))
    assert [choose(seed, EVERYTHING.rates, runs[2 * seed : 2 * seed + 2]) for seed in (0, 1)] == list(done.choices)
    assert set(read) == {"done.json"}


def test_test_images_do_not_affect_the_choice(finished: Finished, tmp_path: Path):
    runner = Runner(tmp_path, random_test=True)
    jobs = tuning_jobs(replace(EVERYTHING, seeds=1), data=fingerprint(runner.dataset))
    choice = choose(0, EVERYTHING.rates, [runner.run(job) for job in jobs])
    expected = finished[0].choices[0]
    assert choice._replace(run="") == expected._replace(run="")
    assert choice.run != expected.run, "other data is another run"


def test_seeds_can_be_listed(finished: Finished, tmp_path: Path):
    done = Runner(tmp_path).run_protocol(replace(EVERYTHING, seeds=(7, 1)))
    assert [choice.seed for choice in done.choices] == [7, 1]
    assert [run.config()["seed"] for run in (*done.tuned, *done.refitted, *done.swa)] == [7, 1] * 3
    assert done.refitted[1].id == finished[0].refitted[1].id, "a seed gives the same run whatever the other seeds are"
    assert read_setting(done.folder).seeds == (7, 1)


def test_choices_are_the_best_validation_rows(finished: Finished):
    """Nothing is smoothed, and recomputed statistics do not count."""
    done, _ = finished
    for choice, run in zip(done.choices, done.tuned, strict=True):
        rows = [row for row in run.rows() if row.selected_by is None and row.split == "val"]
        for metric, sign in (("accuracy", -1), ("loss", 1), ("noisy_accuracy", -1), ("noisy_loss", 1)):
            candidates = [r for r in rows if r.metric == metric and r.batchnorm == "averaged"]
            best = min(candidates, key=lambda row: sign * row.value)  # the earliest on ties
            assert choice.averages[metric.replace("_", "-")] == (best.weights, best.epoch)
        for metric, epoch in (("accuracy", choice.live_epoch), ("noisy_accuracy", choice.noisy_live_epoch)):
            live = [r for r in rows if r.metric == metric and r.weights == "live"]
            assert epoch == max(live, key=lambda row: row.value).epoch


def test_noisy_validation_labels_choose_the_rate_if_asked(tmp_path: Path):
    runs = [make_run(tmp_path / "a", 0.9, noisy=0.3), make_run(tmp_path / "b", 0.4, noisy=0.6, epoch=3)]
    clean, noisy = (choose(0, (0.1, 0.2), runs, labels=labels) for labels in ("clean", "noisy"))
    assert (clean.rate, noisy.rate) == (0.1, 0.2)
    assert noisy.live_epochs == {"accuracy": 3, "noisy-accuracy": 3}
    without = [make_run(tmp_path / "c", 0.9), make_run(tmp_path / "d", 0.4)]
    assert choose(0, (0.1, 0.2), without, labels="noisy").rate == 0.1, "without wrong labels both choices are the same"


@pytest.mark.parametrize(("labels", "epoch"), [("clean", 3), ("noisy", 2)])
def test_the_rate_is_held_from_the_epoch_chosen_by_the_validation_labels(labels: str, epoch: int):
    choice = CHOICE._replace(averages={**CHOICE.averages, "noisy-accuracy": ("ema-1.8%", 2)})
    assert held_from(protocol(data=DataConfig(dataset="own", noise=0.3, validation_labels=labels)), choice) == epoch


def test_choices_by_noisy_labels_are_kept_and_measured_too(finished: Finished):
    done, _ = finished
    columns = read_setting(done.folder).columns
    for stage, runs in (("80%", done.tuned), ("100%", done.refitted)):
        titles = {column.title for column in columns if column.trained_on == stage and column.split == "test"}
        assert {"EMA (acc., noisy)", "EMA (loss, noisy)", "SGD (best, noisy)"} <= titles
        for choice, run in zip(done.choices, runs, strict=True):
            measured = {(row.weights, row.epoch, row.selected_by) for row in run.rows() if row.split == "test"}
            assert ("live", choice.noisy_live_epoch, "noisy-accuracy") in measured
            for criterion in ("noisy-accuracy", "noisy-loss"):
                assert (*choice.averages[criterion], criterion) in measured
    churn = {
        (row.trained_on, row.selected_by) for row in read_rows(done.folder / "rows.jsonl") if row.metric == "churn"
    }
    assert {("100%", "noisy-accuracy"), ("100%", "noisy-loss"), ("80%", "last")} <= churn


# The runs of each stage ----------------------------------------------------------------------------------------------

CHOICE = Choice(3, 0.2, "run", 2, {"accuracy": ("ema-1.8%", 3), "loss": ("ema-7.1%", 1)})


def test_refits_use_the_chosen_seeds_and_rates_and_all_images(finished: Finished):
    done, _ = finished
    for choice, tuned, refit in zip(done.choices, done.tuned, done.refitted, strict=True):
        before, after = tuned.config(), refit.config()
        assert (after["seed"], after["rate"], after["trained_on"]) == (choice.seed, choice.rate, "100%")
        assert after["recipe"]["measuring"] == {"recompute": "chosen", "on_train": True, "test_curves": True}
        assert {**after["recipe"], "measuring": before["recipe"]["measuring"]} == before["recipe"]
        names = {f"{keep['weights']} {keep['epoch']} {keep['selected_by']}" for keep in after["keep"]}
        assert names == {f"live {choice.live_epoch} accuracy", f"live {choice.noisy_live_epoch} noisy-accuracy"} | {
            f"{weights} {epoch} {criterion}"
            for criterion, (average, epoch) in choice.averages.items()
            for weights in ((average,) if criterion.startswith("noisy") else (average, "ema-7.1%"))
        }
        # The same columns, and the last live weights; no column has the live weights with the lowest loss.
        assert set(refit.snapshots()) == set(tuned.snapshots()) - {"live-loss"}
        assert len(refit.load_predictions("live-last")["train"].labels) == 160
        assert len(tuned.load_predictions("live-last")["train"].labels) == 128


def test_swa_holds_the_rate_of_the_cosine_at_three_quarters(finished: Finished):
    done, runner = finished
    steps, warmup = 4 * 4, 0.1 * 4  # 160 images in batches of 40; a fortieth of 4 epochs
    for refit, swa in zip(done.refitted, done.swa, strict=True):
        peak = refit.config()["rate"]
        constant = peak * (1 + math.cos(math.pi * (3 * 4 - warmup) / (steps - warmup))) / 2
        assert [epoch["rate"] for epoch in swa.history()][:3] == [epoch["rate"] for epoch in refit.history()][:3]
        assert swa.history()[3]["rate"] == pytest.approx(constant, rel=1e-12)
        assert refit.history()[3]["rate"] < constant / 2
        assert swa.history()[:3] == refit.history()[:3], "both runs are the same up to the fork"
        assert set(swa.snapshots()) == {"live-last", "swa-recomputed-last"}
    forks = [job.fork for job in runner.trained if job.config.swa]
    assert forks == [refit.fork_path(3) for refit in done.refitted] and all(fork and fork.exists() for fork in forks)


@pytest.mark.parametrize(("swa", "message"), [(False, "diverged on all training images"), (True, "when SWA kept")])
def test_a_diverging_refit_or_swa_run_is_a_clear_error(
    finished: Finished, swa: bool, message: str, monkeypatch: pytest.MonkeyPatch
):
    read_summary = RunFolder.summary

    def summary(run: RunFolder) -> dict[str, Any]:
        config = run.config()
        return {**read_summary(run), "diverged": config["trained_on"] == "100%" and config["swa"] == swa}

    monkeypatch.setattr(RunFolder, "summary", summary)
    with pytest.raises(ValueError, match=f"^with seed 0 and rate [0-9.]+ the training .*{message}"):
        finished[1].run_protocol(EVERYTHING)


@pytest.mark.parametrize(
    ("chosen", "warmup", "expected"), [(3, 0.1, 3), (9, 0.1, 9), (10, 0.1, 9), (1, 1.0, 1), (1, 1.5, 2), (2, 5.0, 5)]
)
def test_the_rate_is_held_after_the_warm_up_and_before_the_last_epoch(chosen: int, warmup: float, expected: int):
    config = protocol(training=TrainingConfig(network="own", epochs=10, warmup_epochs=warmup))
    choice = CHOICE._replace(averages={"accuracy": ("ema-1.8%", chosen), "loss": ("ema-7.1%", 4)})
    epoch = held_from(config, choice)
    assert epoch == expected
    Schedule("cosine", peak=0.1, epochs=10, steps_per_epoch=3, warmup_epochs=warmup, constant_from=epoch)


@pytest.mark.parametrize(
    ("noise", "swa", "forks"), [(0.0, True, (3,)), (0.0, False, ()), (0.4, True, (2, 3)), (0.4, False, (2,))]
)
def test_a_refit_keeps_the_checkpoints_that_other_runs_fork_from(noise: float, swa: bool, forks: tuple[int, ...]):
    config = protocol(data=DataConfig(dataset="own", noise=noise), swa=swa)
    choice = CHOICE._replace(averages={"accuracy": ("ema-1.8%", 2), "loss": ("ema-7.1%", 1)})
    tuned = tuning_jobs(config, data="abc")[0].config
    assert refit_job(config, choice, tuned, has_batchnorm=True).forks == forks


# Stage by stage ------------------------------------------------------------------------------------------------------


def run_stages(finished: Finished, runs: Path, *stages: str, without: Sequence[RunFolder] = ()) -> Any:
    """Run stages in a copy of the finished protocol without some of its runs; return the protocol and the new jobs."""
    if not runs.exists():
        shutil.copytree(finished[1].place.runs, runs)
    for run in without:
        shutil.rmtree(runs / run.id)
    runner = Runner(runs)
    return runner.run_protocol(EVERYTHING, stages=frozenset(stages)), runner.trained


def test_stages_can_be_run_one_after_another(finished: Finished, tmp_path: Path):
    whole, runs = finished[0], tmp_path / "runs"
    tuned, trained = run_stages(finished, runs, "tune", without=[*whole.refitted, *whole.swa])
    assert (trained, tuned.refitted, tuned.swa) == ([], (), ())
    assert tuned.summary["runs"] == {**whole.summary["runs"], "refit": [], "swa": []}
    columns = read_setting(whole.folder).columns
    assert read_setting(tuned.folder).columns == [column for column in columns if column.trained_on == "80%"]
    assert tuned.folder.name == whole.folder.name, "the stages are not part of a protocol's identity"

    refitted, trained = run_stages(finished, runs, "tune", "refit")
    assert [job.config.swa for job in trained] == [False, False]
    assert [len(refitted.refitted), len(refitted.swa)] == [2, 0]
    assert not any(column.title == "SWA" for column in read_setting(refitted.folder).columns)

    swa, trained = run_stages(finished, runs, "swa", "tune", "refit")
    assert [job.config.swa for job in trained] == [True, True]
    assert swa.summary == whole.summary
    for name in ("summary.json", "rows.jsonl"):
        assert (swa.folder / name).read_bytes() == (whole.folder / name).read_bytes()

    fewer, trained = run_stages(finished, runs, "tune")
    assert (trained, fewer.summary) == ([], whole.summary), "finished runs count even if their stage is not asked for"


def test_a_stage_not_asked_for_counts_only_if_all_its_runs_are_done_and_none_diverged(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = finished[0]
    done, trained = run_stages(finished, tmp_path / "one missing", "tune", without=whole.refitted[:1])
    assert (trained, done.refitted, len(done.swa)) == ([], (), 2)
    read_summary = RunFolder.summary

    def summary(run: RunFolder) -> dict[str, Any]:
        return {**read_summary(run), "diverged": run.id == whole.refitted[1].id}

    monkeypatch.setattr(RunFolder, "summary", summary)
    done, trained = run_stages(finished, tmp_path / "one diverged", "tune")
    assert (trained, done.refitted) == ([], ()), "unusable, but not an error"
    with pytest.raises(ValueError, match="diverged on all training images"):
        run_stages(finished, tmp_path / "one diverged", "tune", "refit")


def test_the_slowest_average_without_batch_norm_may_be_the_chosen_one(tmp_path: Path):
    """With one average it always is: both columns show the same weights, and no row is duplicated."""
    runner = Runner(tmp_path, make_model=without_batchnorm)
    done = runner.run_protocol(protocol(averages=AveragesConfig(half_lives=(7.1,)), rates=(0.1,), swa=False))
    assert not load_results(tmp_path).duplicated(KEY).any()
    assert set(done.refitted[0].snapshots()) == {"live-accuracy", "live-last", "ema-7.1%-accuracy", "ema-7.1%-loss"}
    columns = read_setting(done.folder).columns
    by_title = {(column.trained_on, column.split, column.title): column.values for column in columns}
    for (trained_on, split, title), values in by_title.items():
        assert len(values["accuracy"]) == 2 and len(values["churn"]) == 1
        if title.startswith("EMA"):
            assert values == by_title[trained_on, split, title.replace("EMA", "slowest")]


# Nothing is trained twice --------------------------------------------------------------------------------------------


def contents(runs: Path) -> dict[str, Any]:
    """All files of a protocol, except for times and machines."""
    summaries = {path.parent.name: path.read_bytes() for path in runs.glob("*/summary.json")}
    return {"summaries": summaries, **{path.name: files_in(RunFolder(path)) for path in runs.iterdir()}}


def test_a_finished_protocol_trains_nothing_when_run_again(finished: Finished, tmp_path: Path):
    done, before = finished
    runner = Runner(tmp_path / "runs")
    shutil.copytree(before.place.runs, runner.place.runs)
    assert runner.run_protocol(EVERYTHING).summary == done.summary
    assert runner.trained == []
    assert contents(runner.place.runs) == contents(before.place.runs)
    runs = [path.parent for path in runner.place.runs.glob("*/done.json")]
    assert len(runs) == len(before.trained) == 4 + 2 + 2
    assert all(len(RunFolder(run).environment()) == 1 for run in runs), "each run was trained once"


def test_protocols_share_runs(finished: Finished, tmp_path: Path):
    done, before = finished
    runner = Runner(tmp_path / "runs")
    shutil.copytree(before.place.runs, runner.place.runs)
    less = replace(EVERYTHING, seeds=1, swa=False)
    assert runner.run_protocol(less).choices == done.choices[:1]
    assert runner.trained == []
    other_rate = replace(less, rates=(done.choices[0].rate, 0.001))
    assert runner.run_protocol(other_rate).choices == done.choices[:1]
    assert [(job.config.rate, job.config.trained_on) for job in runner.trained] == [(0.001, "80%")]
    assert len(list(runner.place.runs.glob("protocol-*"))) == 3, "each configuration is a protocol of its own"


def test_a_protocol_interrupted_in_every_stage_resumes_and_ends_the_same(tmp_path: Path):
    config = protocol(rates=(0.1,))
    undisturbed = Runner(tmp_path / "undisturbed", make_model=without_batchnorm)
    undisturbed.run_protocol(config)
    assert len(undisturbed.trained) == 2 + 2 + 2
    for last, kind in ((1, ("80%", False)), (2, ("100%", False)), (2, ("100%", True))):
        interrupted = Runner(tmp_path / "interrupted", make_model=without_batchnorm, last=last)
        with pytest.raises(Interrupted):
            interrupted.run_protocol(config)
        stopped = interrupted.trained[-1].config
        assert (stopped.trained_on, stopped.swa) == kind
        assert not list((tmp_path / "interrupted").glob("protocol-*"))
    resumed = Runner(tmp_path / "interrupted", make_model=without_batchnorm)
    resumed.run_protocol(config)
    assert len(resumed.trained) == 1
    assert contents(tmp_path / "interrupted") == contents(tmp_path / "undisturbed")


# Its rows and columns ------------------------------------------------------------------------------------------------


def test_rows_are_complete_and_unique(finished: Finished):
    done, runner = finished
    frame = load_results(runner.place.runs)
    assert not frame.duplicated(KEY).any()
    curves = frame[frame.selected_by.isna()]
    names = {"live", *EVERYTHING.averages.names}
    refit = done.refitted[0].id
    for run, split in [(done.tuned[0].id, "val"), (refit, "train"), (refit, "test")]:
        mine = curves[(curves.run == run) & (curves.split == split) & (curves.metric == "accuracy")]
        assert sorted(zip(mine.epoch, mine.weights, strict=True)) == sorted((e, n) for e in range(1, 5) for n in names)
    assert set(curves[curves.trained_on == "80%"].split) == {"val"}, "other splits have no curves"


def test_transfer_rows_are_linear_evaluations_of_the_chosen_weights(tmp_path: Path):
    done = Runner(tmp_path).run_protocol(protocol(rates=(0.1,), seeds=1, transfer=("digits",)))
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
        features, test_features = (
            model.features((part.images.float() - torch.tensor(notes["mean"])) / torch.tensor(notes["std"]))
            for part in (DIGITS.train, DIGITS.test)
        )
    logits = linear_evaluation(features, DIGITS.train.labels, test_features, classes=10, seed=0)
    expected = float((logits.argmax(1) == DIGITS.test.labels.numpy()).mean())
    assert value == pytest.approx(expected, abs=0.005)
    assert expected > 0.7
    columns = read_setting(done.folder).columns
    (sgd,) = [column for column in columns if (column.trained_on, column.title) == ("100%", "SGD")]
    assert sgd.values["transfer:digits"] == [value]


def test_results_have_the_columns_of_the_paper(finished: Finished):
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
    live = {(column.trained_on, column.title): column.epochs for column in columns if column.title.startswith("SGD")}
    best = [choice.live_epoch for choice in finished[0].choices]
    noisy = [choice.noisy_live_epoch for choice in finished[0].choices]
    assert live == {("80%", "SGD"): best, ("80%", "SGD (last)"): [4, 4], ("80%", "SGD (best, noisy)"): noisy,
                    ("100%", "SGD"): [4, 4], ("100%", "SGD (best)"): best,
                    ("100%", "SGD (best, noisy)"): noisy}  # fmt: skip


def test_columns_have_the_values_of_the_rows(finished: Finished):
    done, runner = finished
    frame = load_results(runner.place.runs)
    titles = {"EMA (acc.)": ("averaged", "accuracy"), "slowest (loss)": ("recomputed", "loss"), "SGD": ("own", "last")}
    columns = {column.title: column for column in read_setting(done.folder).columns if column.trained_on == "100%"}
    for title, (batchnorm, selected_by) in titles.items():
        mine = frame[(frame.batchnorm == batchnorm) & (frame.selected_by == selected_by)]
        for metric in ("accuracy", "loss", "ece", "ece_ts", "memorised", "clean_accuracy"):
            split = "train" if metric in ("memorised", "clean_accuracy") else "test"
            numbers = mine[(mine.metric == metric) & (mine.split == split)].set_index("run").value
            values = [numbers[run.id] for run in done.refitted]
            assert columns[title].values[metric] == values
