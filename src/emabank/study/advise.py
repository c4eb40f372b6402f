"""The command `emabank advise`: which weights of a run to ship, by validation images, checked on test images.

Imports no torch. May import the library's advice, runs, metrics and status.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from emabank import Best
from emabank.advice import Advice, advise, critical_value, gain_text
from emabank.study.averages import kept_name
from emabank.study.config import RunConfig
from emabank.study.executors.progress import say
from emabank.study.metrics import log_softmax
from emabank.study.runs.reader import CONFIG, RunFolder
from emabank.study.runs.rows import Row
from emabank.study.runs.storage import Predictions
from emabank.study.serialize import from_dict

Criterion = Literal["accuracy", "loss"]

LIVE = "live"


@dataclass(frozen=True)
class Gain:
    """How much better one set of kept weights is than the live weights at their best epoch, image by image.

    Args:
        weights: the name of the kept weights.
        on_val: the gain and its standard error on the images that chose both, so it is slightly optimistic.
        on_test: the gain and its standard error on images that had no part in the choice.
    """

    weights: str
    on_val: tuple[float, float]
    on_test: tuple[float, float]


@dataclass(frozen=True)
class RunAdvice:
    """Which weights of one run to ship.

    Args:
        advice: based on the validation images.
        gains: one per set of weights that the run keeps for the criterion.
        kept: the name of the snapshot to ship.
    """

    run: str
    title: str
    advice: Advice
    gains: tuple[Gain, ...]
    kept: str

    @property
    def on_test(self) -> Gain | None:
        """The gain of the weights to ship; None if these are the live weights."""
        return next((gain for gain in self.gains if gain.weights == self.kept), None)


def advise_run(folder: RunFolder, criterion: Criterion = "accuracy") -> RunAdvice:
    """Which weights of a finished run to ship; `ValueError` says why there is no advice."""
    if not folder.is_done():
        wrong = folder.failure() or folder.find_damage() or f"it is {folder.state()}"
        raise ValueError(f"no advice for {folder.path} yet: {wrong}")
    summary = folder.summary()
    if summary.get("diverged"):
        raise ValueError(f"{folder.path} diverged; there is nothing in it to ship")
    rows = folder.rows()
    on_val = [row for row in rows if row.split == "val" and row.metric == criterion]
    epochs = [row for row in on_val if row.selected_by is None]
    if not epochs:
        raise ValueError(
            f"{folder.path} was trained on all images, so it has none to validate on; pass the run with the same rate "
            "that was trained on 80% of them"
        )
    better = "max" if criterion == "accuracy" else "min"
    curves: dict[str, dict[int, float]] = {}
    for row in epochs:
        if row.batchnorm != "recomputed" and row.value is not None and row.epoch is not None and row.weights != "swa":
            curves.setdefault(row.weights, {})[row.epoch] = row.value
    gains = tuple(_gains(folder, rows, criterion))
    by_name = {kept_name(row): row for row in on_val if row.selected_by is not None}
    live_name = f"{LIVE}-{criterion}"
    if live_name not in by_name:
        raise ValueError(f"{folder.path} keeps no live weights of the best {criterion}; train it again")
    live = _as_best(by_name[live_name])
    kept = max(gains, key=lambda gain: gain.on_val[0], default=None)
    if kept is None:
        advice = advise({LIVE: curves[LIVE]}, criterion=criterion, better=better)
        advice = replace(advice, epoch=live.epoch, value=live.value, live=live, stop=min(advice.stop, live.epoch))
        return RunAdvice(folder.id, _title(folder), advice, gains, live_name)
    gain, error = kept.on_val
    # The choice was among every epoch of every average, plus the kept ones with recomputed statistics.
    choices = sum(len(curve) for name, curve in curves.items() if name != LIVE) + len(gains)
    row = by_name[kept.weights]
    shipped = _as_best(row) if gain > 0.0 else live
    has_statistics = gain > 0.0 and row.batchnorm != "own" and summary.get("has_batchnorm")
    advice = advise(curves, criterion=criterion, better=better, error=error, critical=critical_value(choices))
    advice = replace(
        advice,
        average=shipped.average,
        epoch=shipped.epoch,
        value=shipped.value,
        batchnorm=row.batchnorm if has_statistics else None,
        live=live,
        best_average=_as_best(row),
        gain=gain,
        stop=min(advice.stop, shipped.epoch),
    )
    return RunAdvice(folder.id, _title(folder), advice, gains, kept.weights if gain > 0.0 else live_name)


def _as_best(row: Row) -> Best:
    return Best(row.metric, row.weights, row.epoch or 0, math.nan if row.value is None else row.value)


def _gains(folder: RunFolder, rows: Sequence[Row], criterion: Criterion) -> Iterator[Gain]:
    """The gain over the best live weights, for every set of weights that the run keeps for the criterion."""
    live = folder.load_predictions(f"{LIVE}-{criterion}")
    names = {kept_name(row) for row in rows if row.selected_by == criterion and row.weights != LIVE}
    for name in sorted(names & set(folder.predictions())):
        predictions = folder.load_predictions(name)
        val, test = (_paired(predictions[split], live[split], criterion) for split in ("val", "test"))
        yield Gain(name, val, test)


def _paired(predictions: Predictions, live: Predictions, criterion: Criterion) -> tuple[float, float]:
    """The mean gain and its standard error, paired by image."""
    gains = _scores(*predictions, criterion) - _scores(*live, criterion)
    return float(gains.mean()), float(gains.std(ddof=1) / np.sqrt(len(gains)))


def _scores(logits: np.ndarray, labels: np.ndarray, criterion: Criterion) -> np.ndarray:
    """Each image's score by the criterion; higher is better."""
    if criterion == "accuracy":
        return (logits.argmax(1) == labels).astype(np.float64)
    return log_softmax(logits)[np.arange(len(labels)), labels]


def _title(folder: RunFolder) -> str:
    config = from_dict(RunConfig, folder.config(), where=CONFIG)
    return f"{config.recipe.title}: {config.title}"


# Printing ------------------------------------------------------------------------------------------------------------


def show_advice(path: Path, criterion: Criterion = "accuracy", console: Console | None = None) -> None:
    """Print which weights to ship, for a run or for every finished run with validation images in a folder of runs."""
    console = console or Console()
    if not path.is_dir():
        reason = "is not a folder" if path.exists() else "does not exist"
        raise ValueError(f"{path} {reason}; pass the folder that `emabank run` wrote its runs to, or one of its runs")
    if (path / CONFIG).exists():
        _show(RunFolder(path), advise_run(RunFolder(path), criterion), console)
        return
    folders = [RunFolder(entry) for entry in sorted(path.iterdir()) if (entry / CONFIG).exists()]
    if not folders:
        raise ValueError(
            f"{path} contains no runs; pass the folder that `emabank run` wrote its runs to, or one of its runs"
        )
    skipped = 0
    for folder in folders:
        try:
            advised = advise_run(folder, criterion)
        except (ValueError, OSError):
            skipped += 1
            continue
        test, advice = advised.on_test, advised.advice
        gains = [] if advice.gain is None else [f"{_gain(criterion, advice.gain, advice.error)} on validation"]
        gains += [] if test is None else [f"{_gain(criterion, *test.on_test)} on test"]
        stop = f"training could stop after epoch {advice.stop} of {advice.epochs[-1]}"
        say(console, f"{advised.run}: {advised.title}")
        name = "the live weights" if advice.average == LIVE else advice.average
        statistics = " with recomputed statistics" if advice.batchnorm == "recomputed" else ""
        say(console, f"  ship {name} of epoch {advice.epoch}{statistics}; {'; '.join([*gains, stop])}")
    if skipped:
        say(console, f"No advice for {skipped} runs: unfinished, diverged, or trained on all images.")


def _show(folder: RunFolder, advised: RunAdvice, console: Console) -> None:
    say(console, f"{advised.run}: {advised.title}")
    say(console, str(advised.advice))
    if advised.on_test is not None:
        gain, error = advised.on_test.on_test
        article = "a" if gain > critical_value() * error else "no"
        amount = _gain(advised.advice.criterion, gain, error)
        say(console, f"On the test images, which took no part in the choice, it gains {amount}: {article} clear gain.")
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in ("kept weights", "gain on validation", "gain on test"):
        table.add_column(head)
    for gain in advised.gains:
        amounts = [_gain(advised.advice.criterion, *measured) for measured in (gain.on_val, gain.on_test)]
        table.add_row(*map(Text, (gain.weights, *amounts)))
    console.print(table)
    say(console, f"Its weights: {folder.snapshot_path(advised.kept)}")


def _gain(criterion: str, gain: float, error: float | None) -> str:
    return gain_text(gain, error, is_share=criterion == "accuracy", signed=True)
