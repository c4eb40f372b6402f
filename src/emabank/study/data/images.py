"""Data sets in memory: uint8 images with given and true labels; their fingerprint and normalisation."""

import hashlib
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_COUNTED_AT_ONCE = 1024  # images; counting makes a copy of 8 bytes per pixel


@dataclass(frozen=True, eq=False)
class Images:
    """Images uint8 `[n, channels, height, width]`, the given labels int64 `[n]`, and `clean`, the true labels.

    If no label is wrong, `clean` may be the same tensor as `labels`, which is the default of `make_images`.
    """

    images: Tensor
    labels: Tensor
    clean: Tensor

    def __post_init__(self) -> None:
        _check_images(self.images)
        for name, labels in (("labels", self.labels), ("clean labels", self.clean)):
            _check_labels(name, labels, count=len(self.images))

    def __len__(self) -> int:
        return len(self.images)

    @property
    def wrong(self) -> Tensor:
        """A mask `[n]`, True where the given label is not the true one."""
        return self.labels != self.clean

    def take(self, index: Tensor) -> "Images":
        """The images at these indices, in this order; a mask `[n]` selects those where it is True."""
        places = index.nonzero().squeeze(1) if index.dtype == torch.bool else index
        labels = self.labels.index_select(0, places)
        clean = labels if self.clean is self.labels else self.clean.index_select(0, places)
        return Images(self.images.index_select(0, places), labels, clean)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images of one size, with labels from 0 to `classes - 1`."""

    name: str
    classes: int
    train: Images
    test: Images

    def __post_init__(self) -> None:
        sizes = [tuple(part.images.shape[1:]) for part in (self.train, self.test)]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"the training images of {self.name} are {_shape(sizes[0])} and its test images {_shape(sizes[1])}; "
                "give both in one size [channels, height, width]"
            )
        for part, images in (("training", self.train), ("test", self.test)):
            if len(images) == 0:
                raise ValueError(f"{self.name} has no {part} images; give at least one")
            lowest, highest = torch.cat([images.labels, images.clean]).aminmax()
            if lowest < 0 or highest >= self.classes:
                raise ValueError(
                    f"the {part} labels of {self.name} go from {lowest} to {highest}; with classes={self.classes} "
                    f"they must lie between 0 and {self.classes - 1}"
                )


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of each channel, in the units of the stored pixels (0 to 255).

    A network sees `(pixel - mean) / std`.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


def make_images(images: Tensor, labels: Tensor, *, clean: Tensor | None = None) -> Images:
    """Checked `Images` from a user's own tensors; integer labels of any width become int64."""
    labels = _as_int64(labels)
    return Images(images, labels, labels if clean is None else _as_int64(clean))


def fingerprint(dataset: Dataset) -> str:
    """16 hexadecimal digits that change with any pixel, label, true label, shape or the number of classes.

    The name does not count: the same content under another name has the same fingerprint.
    """
    digest = hashlib.sha256(f"classes {dataset.classes}\n".encode())
    for part in (dataset.train, dataset.test):
        # The shape says how many bytes follow, so that no two data sets give the same bytes.
        digest.update(f"images {_shape(part.images.shape)}\n".encode())
        for tensor in (part.images, part.labels, part.clean):
            digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def downsample(dataset: Dataset, size: int | None) -> Dataset:
    """The data set with its images averaged down to `size` x `size` pixels; unchanged if None.

    Each new pixel is the mean of a square block of pixels, rounded half up.
    """
    height, width = dataset.train.images.shape[2:]
    if size is None or height == width == size:
        return dataset
    if height != width or height % size:
        raise ValueError(
            f"size must be a divisor of the height and width of square images; got {size}, and the images of "
            f"{dataset.name} are {height} x {width}"
        )

    def averaged(part: Images) -> Images:
        pieces = [_block_means(some, height // size) for some in part.images.split(_COUNTED_AT_ONCE)]
        return Images(torch.cat(pieces), part.labels, part.clean)

    return Dataset(dataset.name, dataset.classes, averaged(dataset.train), averaged(dataset.test))


def _block_means(images: Tensor, side: int) -> Tensor:
    blocks = images.to(torch.int64).unflatten(3, (-1, side)).unflatten(2, (-1, side))
    return ((blocks.sum(dim=(3, 5)) + side * side // 2) // (side * side)).to(torch.uint8)


def normalisation_of(images: Images) -> Normalisation:
    """The mean and the standard deviation of each channel over all pixels, from exact integer sums.

    A constant channel gets the standard deviation 1.
    """
    moments = [_moments(channel) for channel in images.images.unbind(1)]
    return Normalisation(tuple(mean for mean, _ in moments), tuple(std or 1.0 for _, std in moments))


def _moments(pixels: Tensor) -> tuple[float, float]:
    """Mean and standard deviation from a histogram of the 256 values: exact integers until the last division."""
    counts = torch.zeros(256, dtype=torch.int64, device=pixels.device)
    for some in pixels.split(_COUNTED_AT_ONCE):
        counts += torch.bincount(some.reshape(-1), minlength=256)
    occurrences: list[int] = counts.tolist()
    count = sum(occurrences)
    total = sum(value * times for value, times in enumerate(occurrences))
    squares = sum(value * value * times for value, times in enumerate(occurrences))
    return total / count, sqrt((count * squares - total * total) / (count * count))


def _check_images(images: Tensor) -> None:
    if not isinstance(images, Tensor) or images.dtype != torch.uint8 or images.dim() != 4 or 0 in images.shape[1:]:
        raise ValueError(
            "images must be a uint8 tensor [n, channels, height, width] with values 0 to 255; got "
            f"{_described(images)}. torch.from_numpy makes a tensor, (images * 255).round().to(torch.uint8) makes "
            "bytes of values from 0 to 1, images.unsqueeze(1) gives grey images their channel"
        )


def _check_labels(name: str, labels: Tensor, *, count: int) -> None:
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64 or tuple(labels.shape) != (count,):
        raise ValueError(
            f"{name} must be a tensor of whole numbers [{count}], one label an image; got {_described(labels)}"
        )


def _as_int64(labels: Tensor) -> Tensor:
    return labels.to(torch.int64) if isinstance(labels, Tensor) and labels.dtype in _INTEGERS else labels


def _described(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')} {_shape(value.shape)}"


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
