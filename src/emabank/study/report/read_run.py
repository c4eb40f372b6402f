"""From a run's folder to a run of the evidence, or to the reason why it cannot be one. May import runs, rows and numpy.

The predictions are read when someone asks for them.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from emabank.study.config import RunConfig
from emabank.study.report.evidence import Curve, Predictions, Run
from emabank.study.report.summary import is_number, is_text
from emabank.study.runs.reader import DONE, ENVIRONMENT, HISTORY, ROWS, TEST_CURVES, RunFolder
from emabank.study.runs.rows import Row
from emabank.study.serialize import from_dict

DAMAGE = (ValueError, OSError, LookupError, TypeError, AttributeError, RecursionError)
"""What files that hold something else than they should can raise."""


def read_run(folder: RunFolder) -> Run:
    """A finished run; `ValueError` says in words why it cannot be used.

    >>> read_run(RunFolder("runs/d8cb8c03b3709a2a"))
    Traceback (most recent call last):
    ...
    ValueError: it is not there
    """
    try:
        why = why_not_done(folder)
        if why:
            raise ValueError(why)
        config = from_dict(RunConfig, folder.config(), where="config.json")
        rates, conditions = _rates(folder, config), _conditions(folder)
        return Run(
            id=folder.id,
            seed=config.seed,
            rate=config.rate,
            rates=np.array(rates, dtype=float),
            curves=_curves(_rows(folder, config), len(rates)),
            posthoc=_curves(folder.posthoc() if config.posthoc else (), len(rates)),
            copied_back=config.recipe.training.bootstrap,
            constant_from=config.constant_from,
            conditions=conditions,
            predictions=lambda name: _predictions(folder, name),
        )
    except DAMAGE as error:
        raise ValueError(in_words(error, folder.path)) from error


def why_not_done(folder: RunFolder) -> str:
    """Why a run has nothing to be reported yet, or any more; empty when it is done and whole.

    >>> why_not_done(RunFolder("runs/d8cb8c03b3709a2a"))
    'it is not there'
    """
    if not folder.path.is_dir():
        return "it is no folder" if folder.path.exists() else "it is not there"
    if folder.is_done():
        return ""
    if (folder.path / DONE).exists():
        return f"damaged: {folder.what_is_wrong() or f'{DONE} is not what this emabank writes'}"
    state = folder.state()
    if state == "failed":
        return f"failed: {folder.failure()}"
    return "running now" if state == "running" else "interrupted before its end; the same command goes on"


def in_words(error: BaseException, place: Path) -> str:
    """What an error says, without the folders around the one that it is about.

    >>> in_words(ValueError("runs/d8cb8c03b3709a2a/rows.jsonl is damaged"), Path("runs/d8cb8c03b3709a2a"))
    'rows.jsonl is damaged'
    """
    if isinstance(error, OSError) and error.strerror:
        said = f"{error.filename or 'a file'}: {error.strerror}"
    elif isinstance(error, (ValueError, OSError)):
        said = str(error)
    else:
        said = f"its files are not what this emabank writes ({type(error).__name__}: {error})"
    return without_place(without_place(said, place), place.parent)


def without_place(text: str, place: Path) -> str:
    """A text in which what lies in a folder is called by its name there, so that no report tells where it was made.

    >>> without_place("see /home/me/runs/d8cb8c03b3709a2a/log.txt", Path("/home/me/runs"))
    'see d8cb8c03b3709a2a/log.txt'
    """
    for known in (place.absolute(), place):
        text = text if known == Path() else text.replace(f"{known}{os.sep}", "")
    return text


def renamed(run: Run, averages: tuple[str, ...]) -> Run:
    """The run with its averages called as the setting calls them: another period means another decay and name.

    >>> curves = {Curve("ema-0.8", "averaged", "val", "loss"): np.ones(1)}
    >>> run = Run(id="", seed=0, rate=0.1, rates=np.ones(1), curves=curves)
    >>> next(iter(renamed(run, ("ema-0.9",)).curves)).weights
    'ema-0.9'
    """
    own = {curve.weights for curve in run.curves if curve.weights.startswith("ema-")}
    if own == set(averages):
        return run
    by_memory = sorted(own, key=lambda name: float(name.removeprefix("ema-").removesuffix("%")))
    if len(own) != len(averages):
        raise ValueError(f"it has the averages {', '.join(by_memory) or 'none'} for {', '.join(averages)}")
    names = dict(zip(by_memory, averages, strict=True))
    curves = {curve._replace(weights=names.get(curve.weights, curve.weights)): v for curve, v in run.curves.items()}
    return replace(run, curves=curves)


# What it left ---------------------------------------------------------------------------------------------------------


def _rates(folder: RunFolder, config: RunConfig) -> list[float]:
    """The learning rate at the end of each epoch; a run that diverged has fewer epochs than it was told."""
    history: Any = folder.history()
    rates = [epoch["rate"] for epoch in history] if isinstance(history, list) else []
    if not 0 < len(rates) <= config.recipe.training.epochs or not all(map(is_number, rates)):
        raise ValueError(f"{HISTORY} is not what this emabank writes")
    return rates


def _conditions(folder: RunFolder) -> dict[str, Any]:
    conditions = dict((folder.environment() or [{}])[-1])
    if not all(is_text(str(each)) for item in conditions.items() for each in item):
        raise ValueError(f"{ENVIRONMENT} is not what this emabank writes")
    return conditions


def _rows(folder: RunFolder, config: RunConfig) -> list[Row]:
    rows, of_test = folder.rows(), folder.test_curves()
    asked = config.trained_on == "100%" and config.recipe.measuring.test_curves
    for name, missing in ((ROWS, not rows), (TEST_CURVES, asked and not of_test)):
        if missing and not folder.summary().get("diverged"):
            raise ValueError(f"{name} is empty; measure that run again")
    return [*rows, *of_test]


def _curves(rows: Iterable[Row], epochs: int) -> dict[Curve, np.ndarray]:
    """What was measured each epoch, by what it is a curve of."""
    curves: dict[Curve, np.ndarray] = {}
    for row in rows:
        if row.selected_by is None and row.epoch is not None and 1 <= row.epoch <= epochs:
            curve = Curve(row.weights, row.batchnorm, row.split, row.metric)
            if curve not in curves:
                curves[curve] = np.full(epochs, np.nan)
            curves[curve][row.epoch - 1] = np.nan if row.value is None else row.value
    return curves


def _predictions(folder: RunFolder, name: str) -> Predictions:
    try:
        return {split: (found.logits, found.labels) for split, found in folder.load_predictions(name).items()}
    except (ValueError, OSError) as error:
        raise ValueError(in_words(error, folder.path.parent)) from error
