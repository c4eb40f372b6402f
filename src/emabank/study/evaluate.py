"""Evaluation: a few metrics of all weights after every epoch, every metric of the weights a run keeps, and metrics of
several runs (agreement between seeds, calibration of refits with the temperatures from tuning).

A run that is killed here computes everything anew from its last checkpoint, with the same results.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import nn

from emabank.study.averages import NOISY_CRITERIA, TableStage, rows_by_name
from emabank.study.config import Keep, RunConfig
from emabank.study.data.images import Dataset, Images
from emabank.study.data.splits import Parts
from emabank.study.metrics import (
    accuracy,
    apply_temperature,
    calibrated_ece,
    churn,
    clean_accuracy,
    ece,
    fit_temperature,
    jensen_shannon,
    loss,
    memorised,
    softmax,
)
from emabank.study.runs.reader import RunFolder
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
    """The parts that exist, by their names in rows."""
    named: dict[Part, Images | None] = {"train": parts.train, "val": parts.validation, "test": parts.test}
    return {split: part for split, part in named.items() if part is not None}


def measured_labels(split: Part, part: Images) -> np.ndarray:
    """The labels for accuracy, loss and calibration: the given ones on training images, otherwise the true ones."""
    return (part.labels if split == "train" else part.clean).cpu().numpy()


def epoch_metrics(split: Part, part: Images, logits: np.ndarray) -> dict[str, float]:
    """The metrics of each epoch; on training images also "clean_accuracy" and "memorised".

    If some validation images have a wrong label, "noisy_accuracy" and "noisy_loss" use the given labels.
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


class KeptPredictions(NamedTuple):
    """One set of kept weights: a model that has them, and its logits and labels by split."""

    keep: Keep
    model: nn.Module
    predictions: dict[Part, tuple[np.ndarray, np.ndarray]]


def predict_kept(training: "Training", make_model: Callable[[], nn.Module]) -> Iterator[KeptPredictions]:
    """Yield each set of weights that the run keeps, with recomputed statistics if required, and its predictions.

    Weights that several criteria chose are evaluated only once.
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
            yield KeptPredictions(kept.keep, model, predictions)


def rows_of_kept(run: str, config: RunConfig, kept: KeptPredictions, parts: Parts) -> list[Row]:
    """Every metric of one set of kept weights, on every split for which it has predictions."""
    temperatures = _temperatures(kept, parts)
    rows = [_row(run, config, kept.keep, "val", f"temperature{which}", t) for which, t in temperatures.items()]
    for split, part in by_split(parts).items():
        if split in kept.predictions:
            measured = final_metrics(split, part, kept.predictions[split][0], temperatures=temperatures)
            rows += [_row(run, config, kept.keep, split, metric, value) for metric, value in measured.items()]
    return rows


def _temperatures(kept: KeptPredictions, parts: Parts) -> dict[str, float]:
    """Temperatures fitted on the true validation labels and, if some are wrong, on the given ones ("_noisy")."""
    if parts.validation is None or not np.isfinite(kept.predictions["val"][0]).all():
        return {}
    logits, labels = kept.predictions["val"]
    fitted = {"": fit_temperature(logits, labels)}
    if bool(parts.validation.wrong.any()):
        fitted["_noisy"] = fit_temperature(logits, parts.validation.labels.numpy())
    return fitted


def is_transferred(keep: Keep, config: RunConfig) -> bool:
    """Whether to evaluate the features of these weights on other data sets: not for SWA or a choice by noisy labels."""
    return not config.swa and keep.selected_by not in NOISY_CRITERIA


def rows_of_transfer(run: str, config: RunConfig, kept: KeptPredictions, parts: Parts, target: Dataset) -> list[Row]:
    """The accuracy on another data set of a linear head on the frozen features of kept weights."""
    reached = evaluate_transfer(kept.model, target, normalisation=parts.normalisation, seed=config.seed)
    return [_row(run, config, kept.keep, "test", f"transfer:{target.name}", reached)]


def final_metrics(
    split: Part, part: Images, logits: np.ndarray, *, temperatures: Mapping[str, float]
) -> dict[str, float | None]:
    """Accuracy, loss and calibration, the last two also after each temperature; on training images memorisation."""
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
    return [_row(run, config, metric, metric.split, metric.metric, metric.value) for metric in measured]


def _row(run: str, config: RunConfig, of: EpochMetric | Keep, split: Part, metric: str, value: float | None) -> Row:
    return Row(
        run=run,
        dataset=config.recipe.data.dataset,
        network=config.recipe.training.network,
        trained_on=config.trained_on,
        seed=config.seed,
        weights=of.weights,
        batchnorm=of.batchnorm,
        selected_by=of.selected_by if isinstance(of, Keep) else None,
        epoch=of.epoch,
        split=split,
        metric=metric,
        value=value if value is not None and math.isfinite(value) else None,
        other=None,
    )


# Several runs ---------------------------------------------------------------------------------------------------------


def pairwise_rows(stage: TableStage, runs: Sequence[RunFolder]) -> list[Row]:
    """Churn and Jensen-Shannon divergence between all pairs of seeds, for each column, without duplicates.

    `runs` are those of the stage, one per seed. Pairs with a run that has rows but no predictions are skipped.
    """
    index = rows_by_name(row for run in runs for row in run.rows())
    rows: list[Row] = []
    rows_only = [run.is_rows_only() for run in runs]
    for kept in stage.columns.values():
        logits = [
            np.empty(0) if without else run.load_predictions(name)[stage.split].logits
            for run, name, without in zip(runs, kept, rows_only, strict=True)
        ]
        for holder, other in _pairs_of(stage, kept):
            if rows_only[holder] or rows_only[other]:
                continue
            like = index[runs[holder].id, kept[holder], stage.split, "accuracy", None]  # any metric
            values = _agreement(logits[min(holder, other)], logits[max(holder, other)])
            rows += [
                replace(like, metric=metric, value=value, other=runs[other].id) for metric, value in values.items()
            ]
    return list(dict.fromkeys(rows))  # without batch norm two columns may be the same weights, in all seeds or in some


def temperature_rows(tuned: Iterable[RunFolder], refitted: Iterable[RunFolder]) -> list[Row]:
    """Calibration of the refits on test with the temperatures that the tuning runs fitted on validation.

    Each refit gets the temperature of the same average with the same statistics, chosen by the same criterion. So the
    last live weights of a refit get that of the last live weights in tuning. SWA has no temperature, because it has no
    tuning run. A refit that has rows but no predictions is skipped.
    """
    rows: list[Row] = []
    for before, after in zip(tuned, refitted, strict=True):
        temperatures = {
            name: row.value
            for (_, name, _, metric, _), row in rows_by_name(before.rows()).items()
            if metric == "temperature" and row.value is not None
        }
        index = rows_by_name(after.rows())
        for name in after.predictions():
            logits, labels = after.load_predictions(name)["test"]
            if name not in temperatures or not np.isfinite(logits).all():
                continue
            like = index[after.id, name, "test", "accuracy", None]
            scaled = apply_temperature(logits, temperatures[name])
            values = {
                "temperature": temperatures[name],
                "ece_ts": ece(softmax(scaled), labels),
                "loss_ts": loss(scaled, labels),
            }
            rows += [replace(like, metric=metric, value=value) for metric, value in values.items()]
    return rows


def _agreement(one: np.ndarray, other: np.ndarray) -> dict[str, float | None]:
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return {"churn": None, "js": None}
    return {"churn": churn(one, other), "js": jensen_shannon(softmax(one), softmax(other))}


def _pairs_of(stage: TableStage, kept: Sequence[str]) -> Iterator[tuple[int, int]]:
    """All pairs of seeds, as (the seed whose run the row names, the other seed).

    A row names only the weights of its own run. Without batch norm, the chosen average may be the slowest in one run
    and not in the other. The row then belongs to the run in which the two columns differ.
    """
    for one, other in combinations(range(len(kept)), 2):
        alike = [names for names in stage.columns.values() if names[one] == kept[one]]
        yield (one, other) if all(names[other] == kept[other] for names in alike) else (other, one)
