"""Batches from images: all images stay on the device as uint8, and a few tensor operations make each batch.

`Loader` shuffles, crops and flips, for training; `batches` keeps the order, for evaluation.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from emabank.study.data.images import Images, Normalisation
from emabank.study.data.splits import seeded_generator

Batch = tuple[Tensor, Tensor]
Share = Callable[[int], slice]
"""Maps a number of items to the slice of them that this process handles when several train together."""


def _all(count: int) -> slice:
    return slice(0, count)


class Loader:
    """Shuffled batches `(inputs, labels)` for training, with a random crop and a random flip of each image.

    Iterating yields the rest of the current epoch and then increments `epoch`. After a `break`, the next iteration
    resumes there; if that was at the last batch, it yields nothing. The last batch may be smaller. A single leftover
    image joins the batch before it, which then has `size + 1` images: batch norm cannot train on one image.

    All randomness comes from one CPU generator seeded by `seed`, so other random draws, the device and the number of
    threads do not matter, and the order of the images is the same for every `crop` and `flip`. Use `batches` for
    recalibration and evaluation: iterating a loader advances the training.

    Args:
        images: the training part; batches have its given labels.
        size: images per batch, 2 or more.
        normalisation: of the training part.
        crop: pixels of reflection padding around each image, before a random crop of the original size; 0 for none.
        flip: whether to mirror each image left to right with probability 1/2.
        seed: for order, crops and flips.
        device: where the images are stored and the batches made; None leaves the images on their device.
        memory_format: of the inputs.
        share: which images of each batch this process gets; the random draws are the same for all processes.
    """

    def __init__(
        self,
        images: Images,
        *,
        size: int,
        normalisation: Normalisation,
        crop: int = 0,
        flip: bool = False,
        seed: int = 0,
        device: torch.device | str | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
        share: Share = _all,
    ) -> None:
        self._height, self._width = images.images.shape[2:]
        if len(images) < 2:
            raise ValueError(f"a training part of {len(images)} images was given; give 2 or more")
        if not 0 <= crop < min(self._height, self._width):
            raise ValueError(
                f"crop is {crop}; give 0 to {min(self._height, self._width) - 1} pixels, "
                f"because images of {self._height} x {self._width} have no more to reflect"
            )
        self.size, self.crop, self.flip = size, crop, flip
        self.epoch = 0
        """The number of completed epochs."""
        self.whole = 0
        """The number of images in the last batch, over the shares of all processes."""
        self._share = share
        self._position = 0  # batches yielded in this epoch
        pixels = images.images.to(device)
        self._scale = _Scale(normalisation, pixels, memory_format)
        # Stored as `[n, height, width, channels]`: the bytes of a pixel are adjacent and are copied together.
        self._pixels = _reflected(pixels, crop).permute(0, 2, 3, 1).contiguous()
        self._labels = images.labels.to(device)
        self._generator = seeded_generator("loader", seed)
        self._plan_epoch()

    def __len__(self) -> int:
        """Batches per epoch."""
        whole, rest = divmod(len(self._labels), self.size)
        return whole + (rest > 1)

    def __iter__(self) -> Iterator[Batch]:
        while self._position < len(self):
            batch = self._batch(self._position)
            self._position += 1  # before the yield: a state saved while this batch is trained on counts it
            yield batch
        self.epoch, self._position = self.epoch + 1, 0
        self._plan_epoch()

    def state_dict(self) -> dict[str, Any]:
        """The position in the training, at any batch: integers, booleans and one small tensor.

        The order, crops and flips of an epoch are drawn together at its start, so the generator's state before that
        draw and the number of batches yielded are enough.
        """
        return {
            **self._settings(),
            "epoch": self.epoch,
            "position": self._position,
            "generator": self._before_epoch.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the state of another loader of the same images; iterating yields the rest of its epoch."""
        settings = self._settings()
        different = [
            f"{name} {state[name]} (here {settings[name]})" for name in settings if state[name] != settings[name]
        ]
        if different:
            raise ValueError(
                f"the loader's state was saved with {', '.join(different)}; give the same images and settings as then"
            )
        self._generator.set_state(state["generator"].cpu())
        self.epoch, self._position = state["epoch"], state["position"]
        self._plan_epoch()

    def _settings(self) -> dict[str, Any]:
        return {"images": len(self._labels), "size": self.size, "crop": self.crop, "flip": self.flip}

    def _plan_epoch(self) -> None:
        """Draw the order, crops and flips of an epoch at once: no batch then waits for a small transfer to the device.

        Crops and flips are drawn even if unused, so that the order does not depend on these settings.
        """
        self._before_epoch = self._generator.get_state()
        count = len(self._labels)
        order = torch.randperm(count, generator=self._generator)
        tops, lefts = torch.randint(0, 2 * self.crop + 1, (2, count), generator=self._generator)
        flips = torch.randint(0, 2, (count,), generator=self._generator)
        self._plan = _Plan(*(draws.to(self._labels.device) for draws in (order, tops, lefts, flips)))

    def _batch(self, position: int) -> Batch:
        last = position == len(self) - 1
        chosen = slice(position * self.size, None if last else (position + 1) * self.size)
        self.whole = len(self._plan.order[chosen])
        mine = self._share(self.whole)
        order, tops, lefts, flips = (draws[chosen][mine] for draws in self._plan)
        pieces = self._pieces(order, tops, lefts) if self.crop else self._pixels.index_select(0, order)
        if self.flip:
            # Selecting from images and mirror images copies whole images: several times as fast as torch.where.
            both = torch.cat([pieces, pieces.flip(2)])
            pieces = both.index_select(0, torch.arange(len(order), device=order.device) + len(order) * flips)
        return self._scale(pieces.permute(0, 3, 1, 2)), self._labels.index_select(0, order)

    def _pieces(self, order: Tensor, tops: Tensor, lefts: Tensor) -> Tensor:
        """Crop the padded images `order` at their upper left corners, `tops` and `lefts`."""
        _, height, width, channels = self._pixels.shape
        rows = (order * height + tops).view(-1, 1, 1) + torch.arange(self._height, device=order.device).view(-1, 1)
        columns = lefts.view(-1, 1, 1) + torch.arange(self._width, device=order.device)
        pixels = self._pixels.view(-1, channels).index_select(0, (rows * width + columns).flatten())
        return pixels.view(len(order), self._height, self._width, channels)


class _Plan(NamedTuple):
    """An epoch's order of images; the upper left corner of each crop in the padded image; 1 to flip, 0 not to."""

    order: Tensor
    tops: Tensor
    lefts: Tensor
    flips: Tensor


class Batches:
    """Batches `(inputs, labels)` in order, which can be iterated repeatedly. Made by `batches`."""

    def __init__(self, images: Tensor, labels: Tensor, *, size: int, scale: "_Scale") -> None:
        self._images, self._labels, self._size, self._scale = images, labels, size, scale

    def __len__(self) -> int:
        return -(-len(self._labels) // self._size)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self._labels), self._size):
            chosen = slice(start, start + self._size)
            yield self._scale(self._images[chosen]), self._labels[chosen]


MEASURED_AT_ONCE = 128
"""Images per batch for evaluation. With 512 small images the activations leave the cache, and each takes 50% longer.

Recomputed batch-norm statistics depend on this number: each batch is normalised by itself while they are measured.
"""


def batches(
    images: Images,
    *,
    size: int = MEASURED_AT_ONCE,
    normalisation: Normalisation,
    device: torch.device | str | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
    share: Share = _all,
) -> Batches:
    """All images in order, without crop or flip; nothing is random. For evaluation and recalibration.

    The last batch may be smaller, down to one image. The arguments are those of `Loader`, but `share` divides
    whole batches, and a share may be empty.
    """
    mine = share(-(-len(images) // size))
    chosen = slice(mine.start * size, mine.stop * size)
    pixels, labels = images.images[chosen].to(device), images.labels[chosen].to(device)
    return Batches(pixels, labels, size=size, scale=_Scale(normalisation, pixels, memory_format))


class _Scale:
    """Turns uint8 `[n, channels, height, width]` into a network's input: float32, normalised, in a memory format."""

    def __init__(self, normalisation: Normalisation, like: Tensor, memory_format: torch.memory_format) -> None:
        channels = like.shape[1]
        if not len(normalisation.mean) == len(normalisation.std) == channels:
            raise ValueError(
                f"the normalisation is one of {len(normalisation.mean)} channels and the images have {channels}; "
                "give normalisation_of the training images"
            )
        values = torch.tensor([normalisation.mean, normalisation.std], dtype=torch.float32, device=like.device)
        # Expanded to the shape and memory format of an image: broadcasting over three channels is slow on a CPU.
        self._mean, self._std = (
            values.view(2, -1, 1, 1).expand(2, *like.shape[1:]).contiguous(memory_format=memory_format)
        )
        self._memory_format = memory_format

    def __call__(self, images: Tensor) -> Tensor:
        return images.to(torch.float32, memory_format=self._memory_format).sub_(self._mean).div_(self._std)


def _reflected(images: Tensor, crop: int) -> Tensor:
    """The images with `crop` pixels of reflection padding on each side; the border itself is not repeated."""
    if crop == 0:
        return images
    for dim, side in ((2, images.shape[2]), (3, images.shape[3])):
        away = torch.arange(-crop, side + crop, device=images.device).abs()
        images = images.index_select(dim, (side - 1) - (side - 1 - away).abs())
    return images
