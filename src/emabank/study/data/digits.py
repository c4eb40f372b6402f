"""The digits that come with the package: 1797 grey 8x8 images, always split in the same way.

Source and licence are in digits.txt beside this file.
"""

from importlib.resources import as_file, files
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

CLASSES = 10
_TRAIN = 1297  # the first images; the other 500 are for validation and test


class Split(NamedTuple):
    """Images `[n, 1, 8, 8]`, scaled so that the training images have mean 0 and variance 1, and labels `[n]`."""

    images: Tensor
    labels: Tensor


class Digits(NamedTuple):
    """The three parts; no image is in two of them."""

    train: Split
    validation: Split
    test: Split


def load_digits() -> Digits:
    """Read the embedded digits: 1297 images to train on, 250 to choose on, 250 to report on.

    The file is not shuffled, and neighbours in it are alike. Validation and test take turns in its last 500 images,
    digit by digit, so that both are of one kind and hold the same number of each digit.

    >>> [len(part.labels) for part in load_digits()]
    [1297, 250, 250]
    """
    raw_images, raw_labels = _read()
    images = torch.from_numpy(raw_images.astype(np.float32)).unsqueeze(1)
    labels = torch.from_numpy(raw_labels.astype(np.int64))
    spread, mean = torch.std_mean(images[:_TRAIN], correction=0)
    images = (images - mean) / spread
    # The digits recur in a regular pattern, so that every second image would be mostly the even ones: sort them first.
    held_out = _TRAIN + labels[_TRAIN:].argsort(stable=True)
    parts = torch.arange(_TRAIN), held_out[0::2].sort().values, held_out[1::2].sort().values
    return Digits(*(Split(images[part], labels[part]) for part in parts))


def _read() -> tuple[np.ndarray, np.ndarray]:
    """The stored arrays: images uint8 `[1797, 8, 8]` with values 0 to 16, labels uint8 `[1797]`."""
    with (
        as_file(files("emabank.study.data") / "digits.npz") as path,
        np.load(path, allow_pickle=False) as stored,
    ):
        return stored["images"], stored["labels"]
