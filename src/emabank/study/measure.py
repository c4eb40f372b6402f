"""From a finished training to what the run leaves: kept weights, their predictions, and rows.

Everything is computed anew from the last checkpoint, so that a run that was killed here leaves the same. May import
train, predict, metrics and rows.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from torch import nn

from emabank import recalibrate_batchnorm
from emabank.study.config import Keep, RunConfig
from emabank.study.data.images import Dataset, Images
from emabank.study.data.splits import Parts
from emabank.study.keeping import Kept
from emabank.study.measures import Measured, by_split, measures
from emabank.study.metrics.calibration import apply_temperature, calibrated_ece, ece, fit_temperature
from emabank.study.metrics.classification import loss, softmax
from emabank.study.runs.rows import Part, Row
from emabank.study.train import Training
from emabank.study.transfer import evaluate_transfer


class Predicted(NamedTuple):
    """One set of kept weights: the model that has them, and its logits and labels by split."""

    keep: Keep
    model: nn.Module
    predictions: dict[Part, tuple[np.ndarray, np.ndarray]]


def predicted(training: Training, parts: Parts, make_model: Callable[[], nn.Module]) -> Iterator[Predicted]:
    """Each set of weights that the run keeps, with its statistics recomputed where asked, and its predictions."""
    for kept in training.kept():
        model = _module(kept, training, make_model)
        predictions: dict[Part, tuple[np.ndarray, np.ndarray]] = {}
        for split, part in by_split(parts).items():
            logits = training.logits(model, {"kept": None}, split)["kept"]
            predictions[split] = logits, part.labels.numpy()
        yield Predicted(kept.keep, model, predictions)


def _module(kept: Kept, training: Training, make_model: Callable[[], nn.Module]) -> nn.Module:
    model = training.placed(make_model())
    model.load_state_dict(kept.tensors)
    model.eval()
    if kept.keep.batchnorm == "recomputed":
        recalibrate_batchnorm(training.shared(model), training.plain_batches("train"))
    return model


def rows_of_kept(run: str, config: RunConfig, kept: Predicted, parts: Parts) -> list[Row]:
    """Every measure of one set of kept weights, on every split it was predicted for."""
    temperatures = _temperatures(kept, parts)
    rows = [_row(run, config, kept.keep, "val", f"temperature{which}", t) for which, t in temperatures.items()]
    for split, part in by_split(parts).items():
        if split in kept.predictions:
            measured = measures_of(split, part, kept.predictions[split][0], temperatures=temperatures)
            rows += [_row(run, config, kept.keep, split, metric, value) for metric, value in measured.items()]
    return rows


def _temperatures(kept: Predicted, parts: Parts) -> dict[str, float]:
    """Fitted on the validation labels, and ("_noisy") on those the images came with, where some of these are wrong."""
    if "val" not in kept.predictions or not np.isfinite(kept.predictions["val"][0]).all():
        return {}
    logits, labels = kept.predictions["val"]
    fitted = {"": fit_temperature(logits, labels).temperature}
    if parts.validation_given is not None:
        fitted["_noisy"] = fit_temperature(logits, parts.validation_given.numpy()).temperature
    return fitted


def rows_of_transfer(run: str, config: RunConfig, kept: Predicted, parts: Parts, target: Dataset) -> list[Row]:
    """How well a linear head does on another data set, on the frozen features of kept weights."""
    threads = config.recipe.hardware.threads
    found = evaluate_transfer(kept.model, target, normalisation=parts.normalisation, seed=config.seed, threads=threads)
    return [_row(run, config, kept.keep, "test", f"transfer:{target.name}", found.accuracy)]


def measures_of(
    split: Part, part: Images, logits: np.ndarray, *, temperatures: Mapping[str, float]
) -> dict[str, float | None]:
    """Accuracy, loss and calibration; the same after each temperature; on training images memorisation."""
    labels = part.labels.numpy()
    found: dict[str, float | None] = {**measures(split, part, logits)}
    if not np.isfinite(logits).all():
        return found
    probabilities = softmax(logits)
    found |= {"ece": ece(probabilities, labels), "ece_if_calibrated": calibrated_ece(probabilities)}
    for which, temperature in temperatures.items():
        scaled = apply_temperature(logits, temperature)
        found |= {f"ece_ts{which}": ece(softmax(scaled), labels), f"loss_ts{which}": loss(scaled, labels)}
    return found


def rows_of_history(run: str, config: RunConfig, measured: Iterable[Measured]) -> list[Row]:
    """What was measured each epoch, chosen by nothing."""
    return [
        replace(_like(run, config), weights=m.weights, epoch=m.epoch, batchnorm=m.batchnorm, split=m.split,
                metric=m.metric, value=_finite(m.value))
        for m in measured
    ]  # fmt: skip


def _row(run: str, config: RunConfig, keep: Keep, split: Part, metric: str, value: float | None) -> Row:
    return replace(
        _like(run, config), weights=keep.weights, epoch=keep.epoch, batchnorm=keep.batchnorm,
        selected_by=keep.selected_by, split=split, metric=metric, value=_finite(value),
    )  # fmt: skip


def _like(run: str, config: RunConfig) -> Row:
    """A row with all that the rows of one run have in common."""
    return Row(
        run=run,
        dataset=config.recipe.data.dataset,
        network=config.recipe.training.network,
        trained_on=config.trained_on,
        seed=config.seed,
        weights="live",
        batchnorm="own",
        selected_by=None,
        epoch=None,
        split="train",
        metric="none",
        value=None,
        other=None,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
