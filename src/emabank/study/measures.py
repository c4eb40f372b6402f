"""What is measured each epoch: a few numbers of each set of weights on each split.

May import data, metrics and rows.
"""

import math
from typing import NamedTuple

import numpy as np

from emabank.study.data.images import Images
from emabank.study.data.splits import Parts
from emabank.study.metrics.classification import accuracy, clean_accuracy, loss, memorised
from emabank.study.runs.rows import BatchNorm, Part


class Measured(NamedTuple):
    """One number of one epoch, on its way to a row."""

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


def evaluation_batch(part: Images) -> int:
    """How many images are measured at a time: on a CPU few large ones are fastest, or many small ones.

    Recomputed statistics depend on it, because each batch is normalised by itself while they are measured.

    >>> from emabank.study.data.digits import digits_dataset
    >>> evaluation_batch(digits_dataset().test)
    512
    """
    height, width = part.images.shape[2:]
    return max(64, min(512, 128 * 32 * 32 // (height * width)))


def measures(split: Part, part: Images, logits: np.ndarray) -> dict[str, float]:
    """What is measured each epoch; on training images, right and wrong labels apart."""
    given, clean = part.labels.cpu().numpy(), part.clean.cpu().numpy()
    if not np.isfinite(logits).all():  # such an average is bad, but no reason to end a run
        return {"accuracy": math.nan, "loss": math.nan}
    found: dict[str, float | None] = {"accuracy": accuracy(logits, given), "loss": loss(logits, given)}
    if split == "train":
        found |= {"clean_accuracy": clean_accuracy(logits, given, clean), "memorised": memorised(logits, given, clean)}
    return {metric: value for metric, value in found.items() if value is not None}
