"""From images to batches: a whole part lives as uint8 on the device, and each batch is made by a few tensor operations.

`Loader` shuffles, crops and flips, for training; `batches` goes in order, for measuring. Imports torch and its
neighbours images.py and splits.py only.
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
        memory_format: of the inputs, `torch.contiguous_format` or `torch.channels_last`.
        share: which images of a batch are handed out, by their number: all, or those of one process among several.
            What is random is the same for all of them.

    >>> from emabank.study.data.images import make_images, normalisation_of
    >>> part = make_images(torch.arange(5 * 64).to(torch.uint8).view(5, 1, 8, 8), torch.arange(5))
    >>> loader = Loader(part, size=2, normalisation=normalisation_of(part), crop=1, flip=True)
    >>> [len(labels) for inputs, labels in loader], len(loader), loader.epoch
    ([2, 3], 2, 1)
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
        if len(images) < 2:
            raise ValueError(f"a training part of {len(images)} images was given; give 2 or more")
        self.size, self.crop, self.flip = size, crop, flip
        self.epoch = 0
        """How many epochs are complete."""
        self.whole = 0
        """Images of the batch that was handed out last, in all shares of it."""
        self._share = share
        self._position = 0  # batches handed out in this epoch
        self._crops = _Crops(images.images, normalisation, crop, device=device, memory_format=memory_format)
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
        return self._crops.cut(order, tops, lefts, flips if self.flip else None), self._labels.index_select(0, order)


class _Plan(NamedTuple):
    """Which image comes when; the upper left corner of its piece of the padded image; whether (1) it is flipped."""

    order: Tensor
    tops: Tensor
    lefts: Tensor
    flips: Tensor


class Batches:
    """Batches `(inputs, labels)` in order, as often as it is iterated; made by `batches`."""

    def __init__(self, pixels: Tensor, labels: Tensor, *, size: int, scale: "_Scale") -> None:
        self._pixels, self._labels, self._size, self._scale = pixels, labels, size, scale

    def __len__(self) -> int:
        return -(-len(self._labels) // self._size)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self._labels), self._size):
            chosen = slice(start, start + self._size)
            yield self._scale(self._pixels[chosen]), self._labels[chosen]


def batches(
    images: Images,
    *,
    size: int,
    normalisation: Normalisation,
    device: torch.device | str | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
    share: Share = _all,
) -> Batches:
    """All images in order, without crop or flip; nothing is random. For evaluation and recalibration.

    The last batch may be smaller, down to one image. The arguments mean what they mean for `Loader`; a share is one of
    whole batches, and may be none.

    >>> from emabank.study.data.images import make_images, normalisation_of
    >>> part = make_images(torch.arange(5 * 64).to(torch.uint8).view(5, 1, 8, 8), torch.arange(5))
    >>> [labels.tolist() for inputs, labels in batches(part, size=2, normalisation=normalisation_of(part))]
    [[0, 1], [2, 3], [4]]
    """
    mine = share(-(-len(images) // size))
    chosen = slice(mine.start * size, mine.stop * size)
    pixels = _laid_out(images.images[chosen].to(device), memory_format)
    scale = _Scale(normalisation, images.images.shape, pixels.device, memory_format)
    return Batches(pixels, images.labels[chosen].to(device), size=size, scale=scale)


def evaluation_batch(part: Images) -> int:
    """How many images are measured at a time: on a CPU few large ones are fastest, or many small ones.

    Recomputed statistics depend on it, because each batch is normalised by itself while they are measured.
    """
    height, width = part.images.shape[2:]
    return max(64, min(512, 128 * 32 * 32 // (height * width)))


# Below here pixels are [n, planes, height, row], as they lie in memory. Contiguous images have a plane for each channel
# and a row of `width` values; images that are channels_last have one plane, and the channels of a pixel are neighbours
# in a row of `width * channels` values. So one way of cutting serves both.


def _laid_out(images: Tensor, memory_format: torch.memory_format) -> Tensor:
    if memory_format == torch.contiguous_format:
        return images.contiguous()
    return images.permute(0, 2, 3, 1).flatten(2).unsqueeze(1).contiguous()


class _Scale:
    """Laid out pixels to what a network sees: float32 `[n, channels, height, width]`, normalised."""

    def __init__(
        self, normalisation: Normalisation, shape: torch.Size, device: torch.device, memory_format: torch.memory_format
    ) -> None:
        _, self._channels, self._height, self._width = shape
        if not len(normalisation.mean) == len(normalisation.std) == self._channels:
            raise ValueError(
                f"the normalisation is one of {len(normalisation.mean)} channels and the images have {self._channels}; "
                "give normalisation_of the training images"
            )
        values = torch.tensor([normalisation.mean, normalisation.std], dtype=torch.float32, device=device)
        self._channels_last = memory_format == torch.channels_last
        # A value for each place of a row where channels are neighbours, one for each plane where they are not.
        values = values.repeat(1, self._width).view(2, -1) if self._channels_last else values.view(2, -1, 1, 1)
        self._mean, self._std = values

    def __call__(self, pixels: Tensor) -> Tensor:
        scaled = pixels.to(torch.float32).sub_(self._mean).div_(self._std)
        if self._channels_last:
            return scaled.view(len(pixels), self._height, self._width, self._channels).permute(0, 3, 1, 2)
        return scaled


class _Crops:
    """Images with their reflections around them, and pieces cut out of them anywhere."""

    def __init__(
        self,
        images: Tensor,
        normalisation: Normalisation,
        crop: int,
        *,
        device: torch.device | str | None,
        memory_format: torch.memory_format,
    ) -> None:
        _, channels, self._height, width = images.shape
        if not 0 <= crop < min(self._height, width):
            raise ValueError(
                f"crop is {crop}; give 0 to {min(self._height, width) - 1} pixels, "
                f"because images of {self._height} x {width} have no more to reflect"
            )
        pixels = _laid_out(_reflected(images.to(device), crop), memory_format)
        self._scale = _Scale(normalisation, images.shape, pixels.device, memory_format)
        self._pixels, self._crop = pixels, crop
        self._step = channels if memory_format == torch.channels_last else 1  # from a pixel to its right neighbour
        self._row = width * self._step

    def cut(self, order: Tensor, tops: Tensor, lefts: Tensor, flips: Tensor | None) -> Tensor:
        """The pieces at these corners of these images, mirrored where a flip is 1, as the network sees them."""
        if self._crop:
            pieces = self._rows(self._starts(order, tops, lefts)).view(
                len(order), self._pixels.shape[1], self._height, self._row
            )
        else:
            pieces = self._pixels.index_select(0, order)
        if flips is not None:
            # Choosing among all and all mirrored copies whole images, several times as fast as torch.where on bytes.
            mirrored = pieces.unflatten(3, (-1, self._step)).flip(3).flatten(3)
            both = torch.cat([pieces, mirrored])
            pieces = both.index_select(0, torch.arange(len(order), device=order.device) + len(order) * flips)
        return self._scale(pieces)

    def _starts(self, order: Tensor, tops: Tensor, lefts: Tensor) -> Tensor:
        """Where in memory each row of each piece begins, `[n * planes * height]`."""
        of_image, of_plane, of_row, _ = self._pixels.stride()
        planes = torch.arange(self._pixels.shape[1], device=order.device) * of_plane
        rows = torch.arange(self._height, device=order.device) * of_row
        corners = order * of_image + tops * of_row + lefts * self._step
        return (corners.view(-1, 1, 1) + planes.view(-1, 1) + rows).flatten()

    def _rows(self, starts: Tensor) -> Tensor:
        if starts.device.type != "cpu":
            return self._rows_by_element(starts)
        # Every run of a row's length is a row of this view, and index_select copies rows whole. The view has far more
        # elements than memory holds bytes, which a device that makes views real (mps) could not take.
        everywhere = self._pixels.as_strided((self._pixels.numel() - self._row + 1, self._row), (1, 1))
        return everywhere.index_select(0, starts)

    def _rows_by_element(self, starts: Tensor) -> Tensor:
        return self._pixels.view(-1)[starts.view(-1, 1) + torch.arange(self._row, device=starts.device)]


def _reflected(images: Tensor, crop: int) -> Tensor:
    """The images with `crop` pixels around them, mirrored at the border, which is not repeated."""
    if crop == 0:
        return images
    for dim, side in ((2, images.shape[2]), (3, images.shape[3])):
        away = torch.arange(-crop, side + crop, device=images.device).abs()
        images = images.index_select(dim, (side - 1) - (side - 1 - away).abs())
    return images
