"""TensorBoard and Weights & Biases get the values of the run's own files, also after a run is resumed."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from emabank.study.config import Place, Recipe, RunConfig
from emabank.study.evaluate import EpochMetric
from emabank.study.loggers import loggers, scalars_of
from emabank.study.run_job import Job, run_job
from tests.study.small_runs import config, digits, one_thread  # noqa: F401

RUN = RunConfig(recipe=Recipe(), rate=0.4, seed=0, trained_on="80%")


def training_at(epoch: int, shift: float = 0.0) -> Any:
    """The attributes of a training that loggers read."""
    return SimpleNamespace(
        epoch=epoch,
        history=lambda: [{"epoch": e, "rate": 0.1 * e, "training_loss": e + shift} for e in range(1, epoch + 1)],
        measured=[
            EpochMetric(e, weights, statistics, "val", "accuracy", e / 100 + shift)
            for e in range(1, epoch + 1)
            for weights, statistics in (("live", "own"), ("ema-7.1%", "averaged"), ("ema-7.1%", "recomputed"))
        ],
        test_curves=[EpochMetric(e, "live", "own", "test", "loss", 5.0 + e) for e in range(1, epoch + 1)],
    )


def values_in_files(folder: Path) -> dict[tuple[str, int], float]:
    """The values of each epoch in the files of a run, by the names of curves."""
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    values = {}
    for row in rows:
        if row["selected_by"] is None:
            suffix = "-recomputed" if row["batchnorm"] == "recomputed" else ""
            values[f"{row['split']}/{row['metric']}/{row['weights']}{suffix}", row["epoch"]] = row["value"]
    for epoch in json.loads((folder / "history.json").read_text()):
        values["train/rate", epoch["epoch"]] = epoch["rate"]
        values["train/loss", epoch["epoch"]] = epoch["training_loss"]
    return values


@pytest.mark.parametrize(("name", "value"), [("tensorboard", True), ("wandb", "mine")])
def test_a_missing_package_is_a_clear_error(name: str, value: Any, tmp_path: Path, monkeypatch):
    message = rf"^--{name} needs the package {name}"
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, name, raising=False)
    for _ in range(2):
        with pytest.raises(ValueError, match=message), loggers(Place(**{name: value}), tmp_path, RUN):
            pass
        (tmp_path / name).mkdir(exist_ok=True)  # a plain folder, which Python would import


# With the real packages ----------------------------------------------------------------------------------------------


def tensorboard_values(folder: Path) -> dict[tuple[str, int], float]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    events = [(name, event) for name in found.Tags()["scalars"] for event in found.Scalars(name)]
    values = {(name, event.step): event.value for name, event in events}
    assert len(values) == len(events), "an epoch has one value"
    return values


def test_tensorboard_reads_back_the_values_of_the_run_once(tmp_path: Path):
    pytest.importorskip("tensorboard")
    job, place = (
        Job(config(measuring={"recompute": "each-epoch", "on_train": True})),
        Place(runs=tmp_path, tensorboard=True),
    )
    run = run_job(job, place, digits()[0])
    logged = tensorboard_values(run.path)
    assert logged == pytest.approx(values_in_files(run.path), rel=1e-6)  # in float32
    assert {epoch for _, epoch in logged} == {1, 2, 3, 4} and len(logged) == 4 * (2 + 7 * 4 + 4 * 4)
    run_job(job, place, digits()[0])
    assert len(list((run.path / "tensorboard").iterdir())) == 1, "a finished run is not logged again"


def test_a_resumed_run_replaces_its_repeated_epochs_in_tensorboard(tmp_path: Path):
    pytest.importorskip("tensorboard")
    with loggers(Place(tensorboard=True), tmp_path, RUN) as observe:
        for epoch in range(1, 6):
            observe(training_at(epoch))
    assert {epoch for _, epoch in tensorboard_values(tmp_path)} == {1, 2, 3, 4, 5}
    (first,) = (tmp_path / "tensorboard").iterdir()
    first.rename(first.with_name(first.name.replace("events.out.tfevents.", "events.out.tfevents.0")))  # earlier
    with loggers(Place(tensorboard=True), tmp_path, RUN) as observe:  # resumed in epoch 4
        for epoch in range(4, 8):
            observe(training_at(epoch, shift=0.5))
    found = {epoch: value for (name, epoch), value in tensorboard_values(tmp_path).items() if name == "train/loss"}
    assert found == {1: 1, 2: 2, 3: 3, 4: 4.5, 5: 5.5, 6: 6.5, 7: 7.5}


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Weights & Biases, offline and silent."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    return pytest.importorskip("wandb")


def test_wandb_gets_the_configuration_and_every_epoch(wandb: Any, tmp_path: Path, monkeypatch):
    logged: list[tuple[int, dict[str, float]]] = []
    log = wandb.Run.log
    monkeypatch.setattr(
        wandb.Run, "log", lambda run, data, step: [logged.append((step, data)), log(run, data, step)][1]
    )
    folder = tmp_path / "0123456789abcdef"
    folder.mkdir()
    with loggers(Place(wandb="mine"), folder, RUN) as observe:
        assert (wandb.run.id, wandb.run.project) == (folder.name, "mine")
        assert wandb.run.config["recipe"]["training"]["network"] == "resnet8"
        for epoch in (1, 2):
            observe(training_at(epoch))
    assert wandb.run is None
    assert logged == [(epoch, scalars_of(training_at(epoch))) for epoch in (1, 2)]
    assert list((folder / "wandb").glob(f"offline-run-*/run-{folder.name}.wandb"))


def test_a_failing_start_of_wandb_is_a_clear_error(wandb: Any, tmp_path: Path, monkeypatch):
    def refuse(**_: object) -> None:
        raise wandb.errors.UsageError("No API key configured.\nSecond line.")

    monkeypatch.setattr(wandb, "init", refuse)
    message = r"^wandb .* \(No API key configured.\); log in with `wandb login`, set WANDB_MODE=offline"
    with pytest.raises(ValueError, match=message), loggers(Place(wandb="mine"), tmp_path, RUN):
        pass
