"""From images to batches: a whole part lives as uint8 on the device, and each batch is made by a few tensor operations.

`Loader` shuffles, crops and flips, for training; `batches` goes in order, for measuring.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from emabank.study.data.images import Images, Normalisation
from emabank.study.data.splits import seeded_generator

Batch = tuple[Tensor, Tensor]
Share = Callable[[int], slice]
"""Which of so many things in a row are for this process, where several work together."""


def _all(count: int) -> slice:
    return slice(0, count)


class Loader:
    """Shuffled batches `(inputs, labels)` for training, with a random crop and a random flip of each image.

    Iterating runs to the end of the current epoch, and then `epoch` is one higher; after a `break` it resumes where it
    stopped, with nothing if that was at the last batch. The last batch may be smaller. An image that would be left
    alone joins the batch before it, which then has one more than `size`: batch norm cannot train on a single image.

    All that is random comes from one generator on the CPU, seeded by `seed`: what else draws random numbers, the
    device and the number of threads do not matter, and the order of the images is the same for every `crop` and `flip`.
    For recalibration and evaluation use `batches`: iterating here moves the training on.

    Args:
        images: the training part; the labels handed out are the labels as given.
        size: images a batch, 2 or more.
        normalisation: of the training part.
        crop: pixels of reflection around each image, out of which a piece of the old size is cut; 0 for none.
        flip: whether every second image, at random, is mirrored left to right.
        seed: for order, crops and flips.
        device: where the images live and the batches are made; None leaves them where they are.
        memory_format: of the inputs.
        share: which images of a batch are handed out; what is random is the same for all processes.
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
        """How many epochs are complete."""
        self.whole = 0
        """Images of the batch that was handed out last, in all shares of it."""
        self._share = share
        self._position = 0  # batches handed out in this epoch
        pixels = images.images.to(device)
        self._scale = _Scale(normalisation, pixels, memory_format)
        # Kept as `[n, height, width, channels]`: the bytes of a pixel are neighbours and are copied together.
        self._pixels = _reflected(pixels, crop).permute(0, 2, 3, 1).contiguous()
        self._labels = images.labels.to(device)
        self._generator = seeded_generator("loader", seed)
        self._plan_epoch()

    def __len__(self) -> int:
        """Batches an epoch."""
        whole, rest = divmod(len(self._labels), self.size)
        return whole + (rest > 1)

    def __iter__(self) -> Iterator[Batch]:
        while self._position < len(self):
            batch = self._batch(self._position)
            self._position += 1  # before it is handed out: a state saved while it is trained on is one that has seen it
            yield batch
        self.epoch, self._position = self.epoch + 1, 0
        self._plan_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Where training stands, at any batch: integers, booleans and one small tensor.

        Order, crops and flips of an epoch are drawn together when it starts, so the generator's state from before that
        draw and the number of batches handed out are enough.
        """
        return {
            **self._settings(),
            "epoch": self.epoch,
            "position": self._position,
            "generator": self._before_epoch.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where another loader of the same images stood; iterating gives the rest of that epoch."""
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
        """Draw everything random in one epoch, whether it is used or not: see the class.

        At once, so that training does not wait for a small transfer to the device at each batch.
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
            # Choosing among all and all mirrored copies whole images, several times as fast as torch.where on bytes.
            both = torch.cat([pieces, pieces.flip(2)])
            pieces = both.index_select(0, torch.arange(len(order), device=order.device) + len(order) * flips)
        return self._scale(pieces.permute(0, 3, 1, 2)), self._labels.index_select(0, order)

    def _pieces(self, order: Tensor, tops: Tensor, lefts: Tensor) -> Tensor:
        """The pieces at these corners of these images with their reflections around them."""
        _, height, width, channels = self._pixels.shape
        rows = (order * height + tops).view(-1, 1, 1) + torch.arange(self._height, device=order.device).view(-1, 1)
        columns = lefts.view(-1, 1, 1) + torch.arange(self._width, device=order.device)
        pixels = self._pixels.view(-1, channels).index_select(0, (rows * width + columns).flatten())
        return pixels.view(len(order), self._height, self._width, channels)


class _Plan(NamedTuple):
    """Which image comes when; the upper left corner of its piece of the padded image; whether (1) it is flipped."""

    order: Tensor
    tops: Tensor
    lefts: Tensor
    flips: Tensor


class Batches:
    """Batches `(inputs, labels)` in order, as often as it is iterated; made by `batches`."""

    def __init__(self, images: Tensor, labels: Tensor, *, size: int, scale: "_Scale") -> None:
        self._images, self._labels, self._size, self._scale = images, labels, size, scale

    def __len__(self) -> int:
        return -(-len(self._labels) // self._size)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self._labels), self._size):
            chosen = slice(start, start + self._size)
            yield self._scale(self._images[chosen]), self._labels[chosen]


MEASURED_AT_ONCE = 128
"""Images per batch for measuring: of 512 small ones the activations leave the cache, and each takes half as long again.

Recomputed statistics depend on it, because each batch is normalised by itself while they are measured.
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

    The last batch may be smaller, down to one image. The arguments mean what they mean for `Loader`; a share is one of
    whole batches, and may be none.
    """
    mine = share(-(-len(images) // size))
    chosen = slice(mine.start * size, mine.stop * size)
    pixels, labels = images.images[chosen].to(device), images.labels[chosen].to(device)
    return Batches(pixels, labels, size=size, scale=_Scale(normalisation, pixels, memory_format))


class _Scale:
    """From bytes `[n, channels, height, width]` to what a network sees: float32, normalised, in a memory order."""

    def __init__(self, normalisation: Normalisation, like: Tensor, memory_format: torch.memory_format) -> None:
        channels = like.shape[1]
        if not len(normalisation.mean) == len(normalisation.std) == channels:
            raise ValueError(
                f"the normalisation is one of {len(normalisation.mean)} channels and the images have {channels}; "
                "give normalisation_of the training images"
            )
        values = torch.tensor([normalisation.mean, normalisation.std], dtype=torch.float32, device=like.device)
        # One value for each byte of an image, in its order: broadcasting over three channels would be slow on a CPU.
        self._mean, self._std = (
            values.view(2, -1, 1, 1).expand(2, *like.shape[1:]).contiguous(memory_format=memory_format)
        )
        self._memory_format = memory_format

    def __call__(self, images: Tensor) -> Tensor:
        return images.to(torch.float32, memory_format=self._memory_format).sub_(self._mean).div_(self._std)


def _reflected(images: Tensor, crop: int) -> Tensor:
    """The images with `crop` pixels around them, mirrored at the border, which is not repeated."""
    if crop == 0:
        return images
    for dim, side in ((2, images.shape[2]), (3, images.shape[3])):
        away = torch.arange(-crop, side + crop, device=images.device).abs()
        images = images.index_select(dim, (side - 1) - (side - 1 - away).abs())
    return images
