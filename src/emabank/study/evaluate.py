"""What is measured: a few metrics of each set of weights after every epoch, and all of them of the weights a run keeps.

What is kept is computed anew from the last checkpoint, so that a run that was killed here leaves the same.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import nn

from emabank.study.averages import NOISY_CRITERIA
from emabank.study.config import Keep, RunConfig
from emabank.study.data.images import Dataset, Images
from emabank.study.data.splits import Parts
from emabank.study.metrics.calibration import apply_temperature, calibrated_ece, ece, fit_temperature
from emabank.study.metrics.classification import accuracy, clean_accuracy, loss, memorised, softmax
from emabank.study.runs.rows import BatchNorm, Part, Row
from emabank.study.transfer import evaluate_transfer

if TYPE_CHECKING:
    from emabank.study.selection import SelectedWeights
    from emabank.study.train import Training


class EpochMetric(NamedTuple):
    """One number of one epoch, before it is a row."""

    epoch: int
    weights: str
    batchnorm: BatchNorm
    split: Part
    metric: str
    value: float


def by_split(parts: Parts) -> dict[Part, Images]:
    """The parts that there are, by the names that rows give them."""
    named: dict[Part, Images | None] = {"train": parts.train, "val": parts.validation, "test": parts.test}
    return {split: part for split, part in named.items() if part is not None}


def measured_labels(split: Part, part: Images) -> np.ndarray:
    """The labels for accuracy, loss and calibration: on training images, the given ones."""
    return (part.labels if split == "train" else part.clean).cpu().numpy()


def epoch_metrics(split: Part, part: Images, logits: np.ndarray) -> dict[str, float]:
    """What is measured each epoch; on training images, right and wrong labels apart.

    On validation images of which some have a wrong label, "noisy_accuracy" and "noisy_loss" are by the labels given.
    """
    labels, clean = part.labels.cpu().numpy(), part.clean.cpu().numpy()
    by = {"": measured_labels(split, part)}
    if split == "val" and bool(part.wrong.any()):
        by["noisy_"] = labels
    if not np.isfinite(logits).all():  # such an average is bad, but does not end a run
        return {f"{kind}{metric}": math.nan for kind in by for metric in ("accuracy", "loss")}
    metrics: dict[str, float | None] = {}
    for kind, own in by.items():
        metrics |= {f"{kind}accuracy": accuracy(logits, own), f"{kind}loss": loss(logits, own)}
    if split == "train":
        metrics |= {
            "clean_accuracy": clean_accuracy(logits, labels, clean),
            "memorised": memorised(logits, labels, clean),
        }
    return {metric: value for metric, value in metrics.items() if value is not None}


# The weights a run keeps ---------------------------------------------------------------------------------------------


class Predicted(NamedTuple):
    """One set of kept weights: the model that has them, and its logits and labels by split."""

    keep: Keep
    model: nn.Module
    predictions: dict[Part, tuple[np.ndarray, np.ndarray]]


def predicted(training: "Training", make_model: Callable[[], nn.Module]) -> Iterator[Predicted]:
    """Each set of weights that the run keeps, with its statistics recomputed where asked, and its predictions.

    Several criteria may have chosen the same weights: these are predicted once.
    """
    same: dict[tuple[str, int, BatchNorm], list[SelectedWeights]] = {}
    for kept in training.kept():
        same.setdefault((kept.keep.weights, kept.keep.epoch, kept.keep.batchnorm), []).append(kept)
    for first, *others in same.values():
        model = training.module(make_model, first.tensors, recompute=first.keep.batchnorm == "recomputed")
        predictions: dict[Part, tuple[np.ndarray, np.ndarray]] = {}
        for split, part in by_split(training.measured_parts).items():
            logits = training.logits(model, {"kept": None}, split)["kept"]
            predictions[split] = logits, measured_labels(split, part)
        for kept in (first, *others):
            yield Predicted(kept.keep, model, predictions)


def rows_of_kept(run: str, config: RunConfig, kept: Predicted, parts: Parts) -> list[Row]:
    """Every measure of one set of kept weights, on every split it was predicted for."""
    temperatures = _temperatures(kept, parts)
    rows = [_row(run, config, kept.keep, "val", f"temperature{which}", t) for which, t in temperatures.items()]
    for split, part in by_split(parts).items():
        if split in kept.predictions:
            measured = final_metrics(split, part, kept.predictions[split][0], temperatures=temperatures)
            rows += [_row(run, config, kept.keep, split, metric, value) for metric, value in measured.items()]
    return rows


def _temperatures(kept: Predicted, parts: Parts) -> dict[str, float]:
    """Fitted on the true labels of validation, and ("_noisy") on those given, where some of these are wrong."""
    if parts.validation is None or not np.isfinite(kept.predictions["val"][0]).all():
        return {}
    logits, labels = kept.predictions["val"]
    fitted = {"": fit_temperature(logits, labels)}
    if bool(parts.validation.wrong.any()):
        fitted["_noisy"] = fit_temperature(logits, parts.validation.labels.numpy())
    return fitted


def is_transferred(keep: Keep, config: RunConfig) -> bool:
    """Whether features of these weights are evaluated on other data sets: not those of SWA or of a noisy choice."""
    return not config.swa and keep.selected_by not in NOISY_CRITERIA


def rows_of_transfer(run: str, config: RunConfig, kept: Predicted, parts: Parts, target: Dataset) -> list[Row]:
    """How well a linear head does on another data set, on the frozen features of kept weights."""
    reached = evaluate_transfer(kept.model, target, normalisation=parts.normalisation, seed=config.seed)
    return [_row(run, config, kept.keep, "test", f"transfer:{target.name}", reached)]


def final_metrics(
    split: Part, part: Images, logits: np.ndarray, *, temperatures: Mapping[str, float]
) -> dict[str, float | None]:
    """Accuracy, loss and calibration; the same after each temperature; on training images memorisation."""
    labels = measured_labels(split, part)
    metrics: dict[str, float | None] = {**epoch_metrics(split, part, logits)}
    if not np.isfinite(logits).all():
        return metrics
    probabilities = softmax(logits)
    metrics |= {"ece": ece(probabilities, labels), "ece_if_calibrated": calibrated_ece(probabilities)}
    for which, temperature in temperatures.items():
        scaled = apply_temperature(logits, temperature)
        metrics |= {f"ece_ts{which}": ece(softmax(scaled), labels), f"loss_ts{which}": loss(scaled, labels)}
    return metrics


def rows_of_history(run: str, config: RunConfig, measured: Iterable[EpochMetric]) -> list[Row]:
    """The metrics of every epoch as rows."""
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
