"""The digits that come with the package: 1797 grey 8x8 images with a fixed split.

Source and licence are in digits.txt beside this file.
"""

from importlib.resources import as_file, files

import numpy as np
import torch

from emabank.study.data.images import Dataset, Images, make_images

CLASSES = 10
HALVES = {"digits-0-4": range(5), "digits-5-9": range(5, 10)}
"""The digits in each half, by name."""
_TRAIN = 1297  # the first images; the other 500, by other writers, are the test images


def digits_dataset(name: str = "digits") -> Dataset:
    """The embedded digits: pixels as stored, 0 to 16; the first 1297 for training, the last 500 for testing.

    Or half of the classes, for transfer: `digits-0-4`, or `digits-5-9` with the digit 5 as class 0.
    """
    images, labels = _read()
    classes = HALVES.get(name, range(CLASSES))

    def part(chosen: slice) -> Images:
        kept = np.isin(labels[chosen], classes)
        pixels = torch.from_numpy(images[chosen][kept]).unsqueeze(1)
        return make_images(pixels, torch.from_numpy(labels[chosen][kept] - np.uint8(classes.start)))

    return Dataset(name, len(classes), train=part(slice(_TRAIN)), test=part(slice(_TRAIN, None)))


def _read() -> tuple[np.ndarray, np.ndarray]:
    """The stored arrays: images uint8 `[1797, 8, 8]` with values 0 to 16, labels uint8 `[1797]`."""
    with (
        as_file(files("emabank.study.data") / "digits.npz") as path,
        np.load(path, allow_pickle=False) as stored,
    ):
        return stored["images"], stored["labels"]
