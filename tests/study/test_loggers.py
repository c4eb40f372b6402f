"""Curves for others to watch: what they are shown is what the run's own files say, also after a run was killed."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from emabank.study import loggers as module
from emabank.study.config import Place, Recipe, RunConfig
from emabank.study.evaluate import EpochMetric
from emabank.study.loggers import loggers, scalars_of
from emabank.study.run_job import Job, run_job
from tests.study.small_runs import config, digits, one_thread  # noqa: F401

RUN = RunConfig(recipe=Recipe(), rate=0.4, seed=0, trained_on="80%")


def trained_to(epoch: int, shift: float = 0.0) -> Any:
    """What is looked at of a training after so many epochs."""
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


def of_rows(folder: Path) -> dict[tuple[str, int], float]:
    """What the rows of a run say of each epoch, by the names that curves have."""
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    values = {}
    for row in rows:
        if row["selected_by"] is None:
            again = "-recomputed" if row["batchnorm"] == "recomputed" else ""
            values[f"{row['split']}/{row['metric']}/{row['weights']}{again}", row["epoch"]] = row["value"]
    for epoch in json.loads((folder / "history.json").read_text()):
        values["train/rate", epoch["epoch"]], values["train/loss", epoch["epoch"]] = (
            epoch["rate"],
            epoch["training_loss"],
        )
    return values


def test_a_run_shows_what_its_own_files_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shown: dict[tuple[str, int], float] = {}
    opened: list[Path] = []

    @contextmanager
    def recorder(folder: Path) -> Iterator[module.Log]:
        opened.append(folder)
        yield lambda epoch, scalars: shown.update({(name, epoch): value for name, value in scalars.items()})
        opened.append(folder)

    monkeypatch.setattr(module, "_tensorboard", recorder)
    monkeypatch.setattr("emabank.study.config.find_spec", lambda name: SimpleNamespace(origin="somewhere"))
    job = Job(config(measuring={"recompute": "each-epoch", "on_train": True}))
    run = run_job(job, Place(runs=tmp_path, tensorboard=True), digits()[0])
    assert opened == [run.path, run.path]
    assert shown == of_rows(run.path)
    assert {epoch for _, epoch in shown} == {1, 2, 3, 4} and len(shown) == 4 * (2 + 7 * 4 + 4 * 4)
    run_job(job, Place(runs=tmp_path, tensorboard=True), digits()[0])
    assert len(opened) == 2, "a run that is done is not shown again"


@pytest.mark.parametrize(("name", "asked"), [("tensorboard", True), ("wandb", "mine")])
def test_a_package_that_is_missing_is_one_sentence(name: str, asked: Any, tmp_path: Path, monkeypatch):
    said = rf"^--{name} needs the package {name}"
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, name, raising=False)
    for _ in range(2):
        with pytest.raises(ValueError, match=said), loggers(Place(**{name: asked}), tmp_path, RUN):
            pass
        (tmp_path / name).mkdir(exist_ok=True)  # a folder of that name is no package, though Python would import it


# With the packages themselves ----------------------------------------------------------------------------------------


def curves(folder: Path) -> dict[tuple[str, int], float]:
    """What TensorBoard shows of a run."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    events = [(name, event) for name in found.Tags()["scalars"] for event in found.Scalars(name)]
    shown = {(name, event.step): event.value for name, event in events}
    assert len(shown) == len(events), "an epoch is shown once"
    return shown


def test_tensorboard_reads_back_what_the_run_says(tmp_path: Path):
    pytest.importorskip("tensorboard")
    run = run_job(Job(config()), Place(runs=tmp_path, tensorboard=True), digits()[0])
    assert curves(run.path) == pytest.approx(of_rows(run.path), rel=1e-6)  # it keeps float32


def test_a_resumed_run_does_not_garble_the_curves_of_tensorboard(tmp_path: Path):
    pytest.importorskip("tensorboard")
    with loggers(Place(tensorboard=True), tmp_path, RUN) as observe:
        for epoch in range(1, 6):
            observe(trained_to(epoch))
    assert {epoch for _, epoch in curves(tmp_path)} == {1, 2, 3, 4, 5}
    (first,) = (tmp_path / "tensorboard").iterdir()
    first.rename(first.with_name(first.name.replace("events.out.tfevents.", "events.out.tfevents.0")))  # long ago
    with loggers(Place(tensorboard=True), tmp_path, RUN) as observe:  # from a checkpoint in epoch 4
        for epoch in range(4, 8):
            observe(trained_to(epoch, shift=0.5))
    found = {epoch: value for (name, epoch), value in curves(tmp_path).items() if name == "train/loss"}
    assert found == {1: 1, 2: 2, 3: 3, 4: 4.5, 5: 5.5, 6: 6.5, 7: 7.5}


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Weights & Biases without a network, an account or anything printed."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    return pytest.importorskip("wandb")


def test_wandb_is_given_the_configuration_and_every_epoch(wandb: Any, tmp_path: Path, monkeypatch):
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
            observe(trained_to(epoch))
    assert wandb.run is None, "it is finished"
    assert logged == [(epoch, scalars_of(trained_to(epoch))) for epoch in (1, 2)]
    assert list((folder / "wandb").glob(f"offline-run-*/run-{folder.name}.wandb"))


def test_wandb_that_cannot_start_is_one_sentence(wandb: Any, tmp_path: Path, monkeypatch):
    def refuse(**_: object) -> None:
        raise wandb.errors.UsageError("No API key configured.\nMore of it.")

    monkeypatch.setattr(wandb, "init", refuse)
    said = r"^wandb could not be started \(No API key configured.\); log in with `wandb login`, set WANDB_MODE=offline"
    with pytest.raises(ValueError, match=said), loggers(Place(wandb="mine"), tmp_path, RUN):
        pass
