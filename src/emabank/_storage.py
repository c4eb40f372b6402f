"""Where averages are in memory, and the one fused pass that updates them all.

A tensor of the model is cut into blocks of 1024 elements, and the averages of one block are adjacent:
[blocks, averages, 1024]. One broadcast in-place `lerp_` then updates every average while the live block is still in
cache, which is as fast as memory allows. Small tensors (and the ends of large ones) are first copied together into
one scratch page, so that their number costs little. Knows nothing of names or rules.
"""

import ctypes
import math
import mmap
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 1024  # elements; a block and its averages fit in the first-level caches
SMALL = 4 * BLOCK  # below this size a tensor costs more to dispatch than to copy once more
MIDDLE = (
    32 * BLOCK
)  # below this size too, while the page has space: next to a busy process each parallel region may stall
SERIAL = 31 * BLOCK  # a copy of at most this size is not spread over threads
SCRATCH = 230 * BLOCK  # elements of the scratch page, 0.9 MiB in float32: what a bank may cost beside its averages
CHUNK = 128 * BLOCK  # elements converted at a time, half a mebibyte: it stays in the second-level caches
CHUNKS = 8  # so many of these at a time where the averages are large: it stays in the third-level cache
HUGE = 2 << 20  # bytes of a huge page on x86-64 and arm64

# Private in torch, but what its optimizers are built on: one call for many tensors.
_copy_all = torch._foreach_copy_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


@dataclass(frozen=True)
class TensorLayout:
    """Shape, strides, dtype and device of a live tensor. Averages keep its element order in memory."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, live: Tensor) -> "TensorLayout":
        return cls(live.shape, live.stride(), live.dtype, live.device)

    @property
    def is_dense(self) -> bool:
        """Whether the elements fill a stretch of memory without gaps, in any order of the dimensions."""
        expected = 1
        for stride, size in sorted((st, n) for st, n in zip(self.stride, self.shape, strict=True) if n != 1):
            if stride != expected:
                return False
            expected *= size
        return True

    @property
    def numel(self) -> int:
        """The number of real values; a complex number is two."""
        return self.shape.numel() * (2 if self.dtype.is_complex else 1)

    def precision(self, least: torch.dtype) -> torch.dtype:
        """The real dtype of its averages: `least`, or wider where the tensor is."""
        real = self.dtype.to_real() if self.dtype.is_complex else self.dtype
        # promote_types has no common type for the 8-bit floats; they are all narrower than float32.
        return torch.promote_types(least, real) if real.itemsize > 1 else least

    def flatten(self, tensor: Tensor) -> Tensor:
        """The real values of a tensor of this layout in memory order, 1-D: a view if it is dense."""
        tensor = tensor.as_strided((tensor.numel(),), (1,)) if self.is_dense else tensor.contiguous().view(-1)
        return torch.view_as_real(tensor).view(-1) if tensor.is_complex() else tensor

    def unflatten(self, flat: Tensor) -> Tensor:
        """The inverse of `flatten`."""
        if self.dtype.is_complex:
            flat = torch.view_as_complex(flat.view(-1, 2))
        return flat.as_strided(self.shape, self.stride) if self.is_dense else flat.view(self.shape)

    def flatten_like(self, values: Tensor) -> Tensor:
        """Values of this shape but any strides, flattened in the memory order of this layout."""
        if self.is_dense and values.stride() != self.stride:
            ordered = torch.empty_strided(self.shape, self.stride, dtype=values.dtype, device=values.device)
            values = ordered.copy_(values)
        return self.flatten(values)


class AverageStorage:
    """`count` averages of a list of tensors, all equal to those tensors at first.

    `dtype` is the least precision: a float64 tensor is averaged in float64. `device=None` keeps each average beside
    its live tensor.

    >>> live = [torch.zeros(3), torch.zeros(2, 2)]
    >>> storage = AverageStorage(live, 2, dtype=torch.float32, device=None)
    >>> _ = [tensor.fill_(1.0) for tensor in live]
    >>> storage.lerp_([0.5, 1.0])
    >>> storage.read(0)[0], storage.read(1)[1]
    (tensor([0.5000, 0.5000, 0.5000]), tensor([[1., 1.],
            [1., 1.]]))
    """

    def __init__(self, lives: Sequence[Tensor], count: int, *, dtype: torch.dtype, device: torch.device | None) -> None:
        if device is not None and device.type == "meta":
            raise ValueError("device must be one that holds values, such as 'cpu', or None; got 'meta'.")
        self.count, self.dtype, self.device = count, dtype, device
        self._layouts = [TensorLayout.of(live) for live in lives]
        by_kind: dict[tuple[torch.device, torch.dtype], dict[int, TensorLayout]] = {}
        for index, layout in enumerate(self._layouts):
            by_kind.setdefault((device or layout.device, layout.precision(dtype)), {})[index] = layout
        self._groups = [_FusedGroup(layouts, count, kind, where) for (where, kind), layouts in by_kind.items()]
        self._bind(lives)
        for average in range(count):
            self.write(average, lives)

    def bound_to(self, lives: Sequence[Tensor]) -> "AverageStorage":
        """This storage, reading from these tensors; a rebuilt one if their layouts differ."""
        if [TensorLayout.of(live) for live in lives] == self._layouts:
            self._bind(lives)
            return self
        return self.rebuilt(lives, device=self.device)

    def rebuilt(self, lives: Sequence[Tensor], *, device: torch.device | None) -> "AverageStorage":
        """The same averages for tensors of other layouts, or on another device."""
        other = AverageStorage(lives, self.count, dtype=self.dtype, device=device)
        for average in range(self.count):
            other.write(average, self.read(average))
        return other

    def _bind(self, lives: Sequence[Tensor]) -> None:
        for group in self._groups:
            group.bind(lives)
        self._has_accelerator = any(live.device.type != "cpu" for live in lives)

    def looks_finite(self) -> bool:
        """False if a live tensor holds NaN or inf, or if a sum overflowed. Reads every weight once."""
        sums = [total for group in self._groups for total in group.sums()]
        if self._has_accelerator:  # wait once per accelerator and dtype, not once per tensor
            by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
            for total in sums:
                wide = total.to(torch.promote_types(total.dtype, torch.float32))
                by_kind.setdefault((wide.device, wide.dtype), []).append(wide)
            sums = [torch.stack(totals).sum() for totals in by_kind.values()]
        return all(math.isfinite(total.item()) for total in sums)

    def lerp_(self, weights: list[float]) -> None:
        """Move average k towards the live tensors by weights[k], for all k in one pass."""
        for group in self._groups:
            group.lerp_(weights)

    def read(self, average: int) -> list[Tensor]:
        """Copies of the tensors of one average."""
        out: dict[int, Tensor] = {}
        for group in self._groups:
            group.read(average, out)
        return [out[index] for index in range(len(self._layouts))]

    def write(self, average: int, values: Sequence[Tensor]) -> None:
        """Set the tensors of one average."""
        for group in self._groups:
            group.write(average, values)

    def overlap(self, average: int) -> tuple[float, float, float]:
        """What one average and the live tensors have in common; see `_FusedGroup.overlap`."""
        return _sum_columns([group.overlap(average) for group in self._groups])

    def as_kept(self, lives: Sequence[Tensor]) -> list[Tensor]:
        """Copies of these tensors in the dtype and on the device of their averages."""
        return [
            live.to(self.device or live.device, dtype, copy=True)
            for live, dtype in zip(lives, self.dtypes(), strict=True)
        ]

    def dtypes(self) -> list[torch.dtype]:
        """The dtype of each tensor's averages."""
        precisions = [(layout.dtype.is_complex, layout.precision(self.dtype)) for layout in self._layouts]
        return [precision.to_complex() if is_complex else precision for is_complex, precision in precisions]


@dataclass(frozen=True)
class _Piece:
    """Elements `low` to `high` of one flattened tensor, at `offset` of a page."""

    index: int
    low: int
    high: int
    offset: int

    @property
    def in_page(self) -> slice:
        return slice(self.offset, self.offset + self.high - self.low)

    @property
    def in_tensor(self) -> slice:
        return slice(self.low, self.high)


class _PageSources(NamedTuple):
    """How one page is filled from live tensors."""

    runs: list[tuple[list[Tensor], Tensor]]  # live tensors that are adjacent in the scratch page, and where
    targets: list[Tensor]  # in the scratch page, of tensors of another dtype or device
    lives: list[Tensor]
    blocks: Tensor  # the page, in blocks


@dataclass
class _Sources:
    """Views of the live tensors, made once so that an update need not make any. Never saved, never copied."""

    scratch: Tensor
    pages: list[_PageSources]
    direct: list[tuple[Tensor, Tensor]]  # averages, live
    converted: list[tuple[Tensor, Tensor]]  # averages, live of another dtype, in parts that fit the scratch page
    offloaded: list[tuple[Tensor, Tensor]]  # averages, live on another device, in parts that fit half of it
    large: list[Tensor]  # live, without their ends
    numbers: "array[float]"  # the weights of the averages; on a CPU `weights` is a view of the same memory
    weights: Tensor
    noncontiguous: list[tuple[Tensor, Tensor]]  # copies of live tensors with gaps in memory, and those tensors
    remote_devices: list[torch.device]  # accelerators that the scratch page is filled from
    page: int = -1  # which page is in the scratch page


class _FusedGroup:
    """The averages of all tensors that share a device and a dtype."""

    def __init__(self, layouts: dict[int, TensorLayout], count: int, dtype: torch.dtype, device: torch.device) -> None:
        self.layouts, self.count, self.dtype, self.device = layouts, count, dtype, device
        self.blocks: dict[int, Tensor] = {}
        self.pages: list[tuple[Tensor, list[_Piece]]] = []
        self.sources: _Sources | None = None
        in_pages = _choose_for_pages(layouts)
        pieces: list[_Piece] = []
        filled = 0
        for index in sorted(layouts, key=lambda index: layouts[index].numel):
            size = layouts[index].numel
            full_blocks = 0 if index in in_pages else size // BLOCK
            if full_blocks:
                self.blocks[index] = self._zeros(full_blocks)
            for low in range(full_blocks * BLOCK, size, SERIAL):
                high = min(low + SERIAL, size)
                if filled + high - low > SCRATCH:
                    self.pages.append((self._zeros(math.ceil(filled / BLOCK)), pieces))
                    pieces, filled = [], 0
                pieces.append(_Piece(index, low, high, filled))
                filled += high - low
        if pieces or not self.pages:
            self.pages.append((self._zeros(math.ceil(filled / BLOCK)), pieces))
        self.pages.reverse()  # the last page is not gathered twice (see lerp_), so it is the one with most pieces

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "sources": None}

    def _zeros(self, blocks: int) -> Tensor:
        averages = torch.empty(blocks, self.count, BLOCK, dtype=self.dtype, device=self.device)
        if self.device.type == "cpu":
            _advise_huge_pages(averages)  # before the first write, which settles the size of a page
        return averages.zero_()

    def bind(self, lives: Sequence[Tensor]) -> None:
        """Read from these tensors from now on."""
        flats = {index: layout.flatten(lives[index]) for index, layout in self.layouts.items()}
        noncontiguous = [(f.unflatten(flats[i]), lives[i]) for i, f in self.layouts.items() if not f.is_dense]
        accelerators = {flat.device for flat in flats.values() if flat.device.type != "cpu"} - {self.device}
        remote_devices = sorted(accelerators, key=str)
        size = max((blocks.shape[0] * BLOCK for blocks, _ in self.pages), default=0)
        foreign = [i for i in self.blocks if flats[i].dtype != self.dtype or flats[i].device != self.device]
        one_percent = sum(blocks.numel() for blocks in self.blocks.values()) // 100 // BLOCK * BLOCK
        if foreign:  # fewer and larger conversions wait less for one another
            longest = max(self.blocks[index].shape[0] * BLOCK for index in foreign)
            size = max(size, min(longest, max(CHUNK, min(one_percent, CHUNKS * CHUNK))))
        if remote_devices:  # larger copies use the bus better
            size = max(size, one_percent, 2 * BLOCK)
        pinned = bool(remote_devices) and self.device.type == "cpu"
        scratch = torch.zeros(size, dtype=self.dtype, device=self.device, pin_memory=pinned)
        pages: list[_PageSources] = []
        for blocks, pieces in self.pages:
            entries = [(piece.offset, flats[piece.index][piece.in_tensor]) for piece in pieces]
            in_blocks = scratch[: blocks.shape[0] * BLOCK].view(-1, 1, BLOCK)
            pages.append(_PageSources(*_runs_and_copies(scratch, entries), in_blocks))
        numbers = array("d" if self.dtype is torch.float64 else "f", [0.0] * self.count)
        weights = torch.frombuffer(numbers, dtype=self.dtype).view(-1, 1).to(self.device)
        large = [flats[index][: blocks.shape[0] * BLOCK] for index, blocks in self.blocks.items()]
        self.sources = _Sources(
            scratch, pages, [], [], [], large, numbers, weights, noncontiguous, remote_devices
        )  # fmt: skip
        for blocks, live in zip(self.blocks.values(), large, strict=True):
            self._bind_large(self.sources, blocks, live)

    def _bind_large(self, sources: _Sources, blocks: Tensor, live: Tensor) -> None:
        if live.dtype == self.dtype and live.device == self.device:
            sources.direct.append((blocks, live.view(-1, 1, BLOCK)))
            return
        is_remote = live.device != self.device
        part = max(sources.scratch.numel() // BLOCK // (2 if is_remote else 1), 1)
        pairs = zip(blocks.split(part), live.split(part * BLOCK), strict=True)
        (sources.offloaded if is_remote else sources.converted).extend(pairs)

    # The pass ---------------------------------------------------------------------------------------------------------

    def sums(self) -> Iterator[Tensor]:
        """Reductions of all live tensors that are finite only if these are (unless they overflow)."""
        sources = self._fresh_sources()
        sources.page = -1  # what is in the scratch page may be out of date
        for page, (blocks, _) in enumerate(self.pages):
            self._gather(sources, page)
            gathered = sources.scratch[: blocks.shape[0] * BLOCK]
            yield gathered.dot(gathered)
        for live in sources.large:
            yield (live if live.dtype.itemsize > 1 else live.float()).sum()

    def lerp_(self, weights: list[float]) -> None:
        """Move every average towards the live tensors, each by its own weight."""
        sources = self._fresh_sources()
        sources.numbers[:] = array(sources.numbers.typecode, weights)
        weight = sources.weights
        if self.device.type != "cpu":
            weight.copy_(torch.frombuffer(sources.numbers, dtype=self.dtype).view(-1, 1))
        for page in reversed(range(len(self.pages))):  # `sums` has left the last one in the scratch page
            self._gather(sources, page)
            self.pages[page][0].lerp_(sources.pages[page].blocks, weight)
        sources.page = -1  # the live tensors will have moved by the next update
        for blocks, live in sources.direct:
            blocks.lerp_(live, weight)
        for blocks, live in sources.converted:
            blocks.lerp_(sources.scratch[: live.numel()].copy_(live).view(-1, 1, BLOCK), weight)
        if sources.offloaded:
            self._lerp_offloaded(sources, weight)

    def _lerp_offloaded(self, sources: _Sources, weight: Tensor) -> None:
        """Through two halves of the scratch page: the next part is copied while this one is averaged.

        Copies run on the caller's stream, so that each waits for the optimizer step before it; this thread waits for a
        part only when its turn has come.
        """
        halves = sources.scratch.split(sources.scratch.numel() // BLOCK // 2 * BLOCK)
        in_flight = self._fetch(sources.offloaded[0][1], halves[0])
        for number, (blocks, live) in enumerate(sources.offloaded):
            ready = in_flight
            if number + 1 < len(sources.offloaded):
                in_flight = self._fetch(sources.offloaded[number + 1][1], halves[(number + 1) % 2])
            if ready is not None:
                ready.synchronize()
            blocks.lerp_(halves[number % 2][: live.numel()].view(-1, 1, BLOCK), weight)

    def _fetch(self, live: Tensor, half: Tensor) -> torch.Event | None:
        on_cpu = live.device.type == "cpu"
        # A copy from the CPU blocks: no stream would keep the next optimizer step from writing the weights meanwhile.
        half[: live.numel()].copy_(live, non_blocking=not on_cpu)
        if on_cpu or self.device.type != "cpu":
            return None  # done already, or ordered by the averages' own stream
        return torch.accelerator.current_stream(live.device).record_event()

    def _gather(self, sources: _Sources, page: int) -> None:
        if sources.page == page:
            return
        gathered = sources.pages[page]
        for lives, target in gathered.runs:
            torch.cat(lives, out=target)
        if gathered.targets:
            _copy_all(gathered.targets, gathered.lives, non_blocking=bool(sources.remote_devices))
        for device in sources.remote_devices:
            torch.accelerator.current_stream(device).synchronize()
        sources.page = page

    def _fresh_sources(self) -> _Sources:
        assert self.sources is not None, "bind comes first"
        for copy, live in self.sources.noncontiguous:
            copy.copy_(live)
        return self.sources

    # One average ------------------------------------------------------------------------------------------------------

    def read(self, average: int, out: dict[int, Tensor]) -> None:
        """Put copies of one average's tensors into `out`, in the live tensors' shapes and memory order."""
        flats = {
            index: torch.empty(layout.numel, dtype=self.dtype, device=self.device)
            for index, layout in self.layouts.items()
        }
        for index, blocks in self.blocks.items():
            flats[index][: blocks.shape[0] * BLOCK].view(-1, BLOCK).copy_(blocks[:, average])
        for blocks, pieces in self.pages:
            page = blocks[:, average].reshape(-1)
            for piece in pieces:
                flats[piece.index][piece.in_tensor] = page[piece.in_page]
        out.update({index: layout.unflatten(flats[index]) for index, layout in self.layouts.items()})

    def write(self, average: int, values: Sequence[Tensor]) -> None:
        """Set one average's tensors."""
        flats = {index: layout.flatten_like(values[index]) for index, layout in self.layouts.items()}
        for index, blocks in self.blocks.items():
            blocks[:, average].copy_(flats[index][: blocks.shape[0] * BLOCK].view(-1, BLOCK))
        for blocks, pieces in self.pages:
            page = torch.zeros(blocks.shape[0] * BLOCK, dtype=self.dtype, device=self.device)
            for piece in pieces:
                page[piece.in_page].copy_(flats[piece.index][piece.in_tensor])
            blocks[:, average].copy_(page.view(-1, BLOCK))

    def overlap(self, average: int) -> tuple[float, float, float]:
        """The inner products of one average, each part of it minus its mean, with the live tensors and with itself, and
        the variance that the first would have if the live tensors were random ones of their length.

        Constants, such as the initial ones of a norm, add nothing.
        """
        sources = self._fresh_sources()
        sources.page = -1
        pairs: list[tuple[Tensor, Tensor]] = [*sources.converted, *sources.offloaded]
        for blocks, live in sources.direct:
            pairs += zip(blocks.split(CHUNK // BLOCK), live.split(CHUNK // BLOCK), strict=True)
        products = [_products(blocks[:, average], live) for blocks, live in pairs]
        for page, (blocks, pieces) in enumerate(self.pages):
            self._gather(sources, page)
            values = blocks[:, average].reshape(-1)
            products += [_products(values[piece.in_page], sources.scratch[piece.in_page]) for piece in pieces]
        return _sum_columns(products)


def _products(average: Tensor, live: Tensor) -> tuple[float, float, float]:
    centred = average.reshape(-1)
    centred = centred - centred[0]  # so that a constant is exactly 0
    centred -= centred.mean()
    live = live.reshape(-1).to(centred)
    own = float(centred.dot(centred))
    return float(centred.dot(live)), own, own * float(live.dot(live)) / live.numel()


def _sum_columns(products: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    first, second, third = map(math.fsum, zip(*products, strict=True)) if products else (0.0, 0.0, 0.0)
    return first, second, third


def _runs_and_copies(
    scratch: Tensor, entries: Sequence[tuple[int, Tensor]]
) -> tuple[list[tuple[list[Tensor], Tensor]], list[Tensor], list[Tensor]]:
    """Which of these tensors, each with its offset in the scratch page, `cat` can put there in runs, and which a copy
    must.

    On a CPU a `cat` of fewer elements than torch spreads over threads is one loop in C, at half the price of copies.
    """
    starts: list[tuple[int, list[Tensor]]] = []
    targets: list[Tensor] = []
    lives: list[Tensor] = []
    end = filled = 0
    for offset, live in entries:
        size = live.numel()
        if live.dtype != scratch.dtype or live.device != scratch.device or live.device.type != "cpu":
            targets.append(scratch[offset : offset + size])
            lives.append(live)
            continue
        if not starts or offset != end or filled + size > SERIAL:
            starts.append((offset, []))
            filled = 0
        starts[-1][1].append(live)
        filled, end = filled + size, offset + size
    runs = [(run, scratch[start : start + sum(map(Tensor.numel, run))]) for start, run in starts]
    return runs, targets, lives


def _choose_for_pages(layouts: Mapping[int, TensorLayout]) -> set[int]:
    """Which tensors go into pages: all small ones, and of the middling as many as fit beside them."""
    chosen: set[int] = set()
    filled = sum(layout.numel % BLOCK for layout in layouts.values() if layout.numel >= SMALL)  # ends of the others
    for index in sorted(layouts, key=lambda index: layouts[index].numel):
        size = layouts[index].numel
        filled += size if size < SMALL else size - size % BLOCK
        if size >= SMALL and (size >= MIDDLE or filled > SCRATCH):
            break
        chosen.add(index)
    return chosen


# Huge pages: with pages of 4 KiB an update of five averages of a ResNet-18 takes a sixth longer (docs/log.md). --------


def _advise_huge_pages(tensor: Tensor) -> None:
    start = -(-tensor.data_ptr() // HUGE) * HUGE
    length = (tensor.data_ptr() + tensor.nbytes - start) // HUGE * HUGE  # whole pages of this tensor alone
    madvise = _madvise()
    if madvise is not None and length > 0:
        madvise(start, length, mmap.MADV_HUGEPAGE)  # a hint: where it is refused, nothing happens


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is not None:
        madvise.argtypes, madvise.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    return madvise
