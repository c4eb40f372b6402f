"""Where averages are in memory, and the one fused pass that updates them all.

Weights are cut into blocks of 1024 elements, and the averages of one block are adjacent: [blocks, averages, 1024]. One
broadcast in-place `lerp_` then updates every average while the live block is still in cache, which is as fast as memory
allows. A large tensor is read where it is. Small tensors, and the ends of large ones, are first copied together into a
scratch buffer, so that their number costs little; so are the parts of a tensor of another dtype or device. Knows
nothing of names or rules.
"""

import ctypes
import math
import mmap
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

BLOCK = 1024  # elements; a block and its averages fit in the first-level caches
LARGE = 32 * BLOCK  # torch works on less than this in one thread; more is worth a parallel region of its own
SCRATCH = 230 * BLOCK  # elements of a scratch buffer, 0.9 MiB in float32: what a bank may cost beside its averages
HUGE = 2 << 20  # bytes of a huge page on x86-64 and arm64

# Private in torch, but what its optimizers are built on: one call for many tensors.
_copy_all = torch._foreach_copy_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
_norm_all = torch._foreach_norm  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


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

    @property
    def real_dtype(self) -> torch.dtype:
        return self.dtype.to_real() if self.dtype.is_complex else self.dtype

    def precision(self, least: torch.dtype) -> torch.dtype:
        """The real dtype of its averages: `least`, or wider where the tensor is."""
        # promote_types has no common type for the 8-bit floats; they are all narrower than float32.
        return torch.promote_types(least, self.real_dtype) if self.dtype.itemsize > 1 else least

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

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_flats": [], "_noncontiguous": []}  # a copy is bound to its own model later

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
        """Make all views of the live tensors now, so that an update need not make any."""
        self._flats = [layout.flatten(live) for layout, live in zip(self._layouts, lives, strict=True)]
        bound = zip(self._layouts, self._flats, lives, strict=True)
        self._noncontiguous = [(layout.unflatten(flat), live) for layout, flat, live in bound if not layout.is_dense]
        on_cpu = {flat.device.type == "cpu" for flat in self._flats} | {g.device.type == "cpu" for g in self._groups}
        self._is_on_cpu, self.is_on_accelerator = on_cpu == {True}, on_cpu == {False}
        for group in self._groups:
            group.bind(self._flats)

    # The pass

    def lerp_(self, weights: Sequence[float], finite: Tensor | None = None) -> None:
        """Move average k towards the live tensors by weights[k], for all k in one pass.

        With `finite`, a flag that an accelerator may still be computing: only if it is true.
        """
        self._copy_noncontiguous()
        for group in self._groups:
            group.lerp_(weights, finite)

    def nonfinite(self) -> list[int]:
        """Which live tensors hold NaN or inf. Reads every weight once, and waits for accelerators."""
        if not self._is_on_cpu:
            return self.start_check()[1]()
        self._copy_noncontiguous()
        if all(group.all_finite(self._flats) for group in self._groups):
            return []
        return [index for index, flat in enumerate(self._flats) if not is_finite(flat)]

    def start_check(self) -> tuple[Tensor, Callable[[], list[int]]]:
        """Look for NaN and inf without waiting for an accelerator: a flag there that is true if it finds none, and a
        function that waits and returns which live tensors hold them.
        """
        self._copy_noncontiguous()
        flats = [flat if flat.numel() else flat.new_zeros(1) for flat in self._flats]
        flats = [flat.float() if flat.dtype.itemsize == 1 else flat for flat in flats]
        device = flats[0].device
        norms = torch.stack([norm.to(device, non_blocking=True) for norm in _norm_all(flats, math.inf)])
        fetched, arrived = norms.to("cpu", non_blocking=True), _record_events({device})

        def wait() -> list[int]:
            for event in arrived:
                event.synchronize()
            return (~fetched.isfinite()).nonzero().flatten().tolist()

        return norms.isfinite().all(), wait

    def _copy_noncontiguous(self) -> None:
        for copy, live in self._noncontiguous:
            copy.copy_(live)

    # One average

    def read(self, average: int) -> list[Tensor]:
        """Copies of the tensors of one average."""
        flats: dict[int, Tensor] = {}
        for group in self._groups:
            flats |= group.read(average)
        return [layout.unflatten(flats[index]) for index, layout in enumerate(self._layouts)]

    def write(self, average: int, values: Sequence[Tensor]) -> None:
        """Set the tensors of one average."""
        flats = [layout.flatten_like(value) for layout, value in zip(self._layouts, values, strict=True)]
        for group in self._groups:
            group.write(average, flats)

    def samples(self, average: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Parts of one average and of the live tensors, flattened: at most 0.9 MiB of each segment."""
        self._copy_noncontiguous()
        for segment in (segment for group in self._groups for segment in group.segments):
            values = segment.averages[: SCRATCH // BLOCK, average].reshape(-1)
            for piece, live in zip(segment.pieces, _parts(segment.pieces, self._flats), strict=True):
                part = values[piece.offset : piece.end]
                if len(part):
                    yield part, live[: len(part)].to(part)

    def dtypes(self) -> list[torch.dtype]:
        """The dtype of each tensor's averages."""
        precisions = [(layout.dtype.is_complex, layout.precision(self.dtype)) for layout in self._layouts]
        return [precision.to_complex() if is_complex else precision for is_complex, precision in precisions]


@dataclass(frozen=True)
class _Piece:
    """Elements `low` to `high` of one flattened tensor, at `offset` of a segment."""

    index: int
    low: int
    high: int
    offset: int

    @property
    def end(self) -> int:
        return self.offset + self.high - self.low


def _parts(pieces: Iterable[_Piece], flats: Mapping[int, Tensor] | Sequence[Tensor]) -> list[Tensor]:
    return [flats[piece.index][piece.low : piece.high] for piece in pieces]


class _Segment:
    """What one `lerp_` updates: the blocks of a large tensor, or a page of small pieces, and their averages.

    `averages` is [blocks, averages, BLOCK], and `live` [blocks, 1, BLOCK]: the memory of the live tensor, or a scratch
    buffer that `start_copy` fills.
    """

    live: Tensor

    def __init__(self, pieces: list[_Piece], averages: Tensor) -> None:
        self.pieces, self.averages = pieces, averages

    def __getstate__(self) -> dict[str, object]:
        return {"pieces": self.pieces, "averages": self.averages}  # no views of live weights

    def bind(self, flats: Sequence[Tensor], buffer: Tensor) -> None:
        """Copy from these tensors into this buffer from now on."""
        flat = buffer.view(-1)
        self.live, self.copied = buffer[: len(self.averages)], flat[: self.pieces[-1].end]
        self._runs: list[tuple[Tensor, list[Tensor]]] = []
        self._copies: tuple[list[Tensor], list[Tensor]] = [], []
        kinds = {(flats[piece.index].device, flats[piece.index].dtype) for piece in self.pieces}
        on_cpu = buffer.device.type == "cpu"
        self._accelerators = {device for device, _ in kinds if on_cpu and device.type != "cpu"}
        if on_cpu and kinds == {(buffer.device, buffer.dtype)}:
            # A `cat` of fewer elements than torch shares among threads is one loop in C, at half the price of copies.
            runs: list[list[_Piece]] = []
            for piece in self.pieces:
                if not runs or piece.end - runs[-1][0].offset >= LARGE:
                    runs.append([])
                runs[-1].append(piece)
            self._runs = [(flat[run[0].offset : run[-1].end], _parts(run, flats)) for run in runs]
        else:
            self._copies = [flat[piece.offset : piece.end] for piece in self.pieces], _parts(self.pieces, flats)

    def start_copy(self) -> list[torch.Event]:
        """Fill the buffer; copies from accelerators have arrived once the events have happened."""
        for target, sources in self._runs:
            torch.cat(sources, out=target)
        if not self._runs:
            # From the CPU a copy blocks: no stream would keep the next optimizer step from writing there meanwhile.
            _copy_all(*self._copies, non_blocking=bool(self._accelerators))
        return _record_events(self._accelerators) if self._accelerators else []


class _FusedGroup:
    """The averages of all tensors that share a device and a dtype."""

    def __init__(self, layouts: dict[int, TensorLayout], count: int, dtype: torch.dtype, device: torch.device) -> None:
        self.device, self._dtype = device, dtype
        self._sizes = {index: layout.numel for index, layout in layouts.items()}
        foreign = {i for i, layout in layouts.items() if (layout.device, layout.real_dtype) != (device, dtype)}
        # From another device the next segment is copied while this one is averaged.
        self._num_buffers = 2 if any(layout.device != device for layout in layouts.values()) else 1
        scratch = SCRATCH
        if foreign:  # larger copies wait less for one another; a 64th stays within 2 % of the averages
            scratch = max(SCRATCH, min(count * sum(self._sizes.values()) // 64, 4 * SCRATCH))
        large, pages = _plan(self._sizes, foreign, scratch // self._num_buffers // BLOCK * BLOCK)
        blocks = [math.ceil(pieces[-1].end / BLOCK) for pieces in (*pages, *large)]
        averages = torch.empty(sum(blocks), count, BLOCK, dtype=dtype, device=device)
        _advise_huge_pages(averages)  # before the first write, which settles the size of a memory page
        self.segments = list(map(_Segment, (*pages, *large), averages.zero_().split(blocks)))
        self._pages, self._blocks = self.segments[: len(pages)], self.segments[len(pages) :]
        self._large = list({segment.pieces[0].index: None for segment in self._blocks})
        self._direct = [segment for segment in self._blocks if segment.pieces[0].index not in foreign]
        self._gathered = [*(s for s in self._blocks if s.pieces[0].index in foreign), *self._pages]
        self._page_in_buffer: _Segment | None = None  # if `all_finite` has left one there
        self._weights, self._numbers = torch.zeros(count, 1, dtype=dtype, device=device), [0.0] * count

    def bind(self, flats: Sequence[Tensor]) -> None:
        """Read from these tensors from now on."""
        for segment in self._direct:
            segment.live = _parts(segment.pieces, flats)[0].view(-1, 1, BLOCK)
        longest = max((len(segment.averages) for segment in self._gathered), default=0)
        buffers = torch.zeros(self._num_buffers, longest, 1, BLOCK, dtype=self._dtype, device=self.device)
        if self.device.type == "cpu" and any(flats[index].device.type != "cpu" for index in self._sizes):
            buffers = buffers.pin_memory()  # only then can a copy from an accelerator run beside the host
        for number, segment in enumerate(self._gathered):
            segment.bind(flats, buffers[number % self._num_buffers])

    def lerp_(self, weights: Sequence[float], finite: Tensor | None) -> None:
        """Move every average towards the live tensors, each by its own weight."""
        for row, number in enumerate(weights):
            if number != self._numbers[row]:
                self._weights[row].fill_(number)  # a copy from the CPU would make the host wait
                self._numbers[row] = number
        weight = self._weights
        if finite is not None:
            finite = finite.to(self.device, non_blocking=True)
            weight = weight * finite
        for segment in self._live_segments():
            # A weight of 0 keeps an average only if what it weights is finite.
            live = segment.live if finite is None else torch.where(finite, segment.live, 0.0)
            segment.averages.lerp_(live, weight)

    def all_finite(self, flats: Sequence[Tensor]) -> bool:
        """Whether the live tensors, all on the CPU, are finite."""
        for page in self._pages:
            self._page_in_buffer = None
            page.start_copy()
            if not is_finite(page.copied):
                return False
            self._page_in_buffer = page
        return all(is_finite(flats[index]) for index in self._large)

    def _live_segments(self) -> Iterator[_Segment]:
        """All segments, each once its live values can be read."""
        segments, page, self._page_in_buffer = self._gathered[::-1], self._page_in_buffer, None
        copies = ([] if segment is page else segment.start_copy() for segment in segments)  # lazy: runs when advanced
        in_flight = deque(islice(copies, self._num_buffers - 1))
        for segment in segments:
            in_flight.extend(islice(copies, 1))
            for event in in_flight.popleft():
                event.synchronize()
            yield segment
        yield from self._direct

    def read(self, average: int) -> dict[int, Tensor]:
        """Copies of the tensors of one average, flattened."""
        flats = {i: torch.empty(size, dtype=self._dtype, device=self.device) for i, size in self._sizes.items()}
        for segment in self._blocks:
            _parts(segment.pieces, flats)[0].view(-1, BLOCK).copy_(segment.averages[:, average])
        for page in self._pages:
            values = page.averages[:, average].reshape(-1)
            for part, piece in zip(_parts(page.pieces, flats), page.pieces, strict=True):
                part.copy_(values[piece.offset : piece.end])
        return flats

    def write(self, average: int, flats: Sequence[Tensor]) -> None:
        """Set the tensors of one average."""
        for segment in self._blocks:
            segment.averages[:, average].copy_(_parts(segment.pieces, flats)[0].view(-1, BLOCK))
        for page in self._pages:
            values = torch.zeros(len(page.averages) * BLOCK, dtype=self._dtype, device=self.device)
            for part, piece in zip(_parts(page.pieces, flats), page.pieces, strict=True):
                values[piece.offset : piece.end].copy_(part)
            page.averages[:, average].copy_(values.view(-1, BLOCK))


def _plan(sizes: Mapping[int, int], foreign: set[int], capacity: int) -> tuple[list[list[_Piece]], list[list[_Piece]]]:
    """The pieces of segments: blocks of large tensors, in parts where they are foreign, and pages of all the rest."""
    large: list[list[_Piece]] = []
    pages: list[list[_Piece]] = []
    end = capacity
    for index, size in sizes.items():
        in_blocks = size // BLOCK * BLOCK if size >= LARGE else 0
        step = capacity if index in foreign else max(in_blocks, 1)
        large += [[_Piece(index, low, min(low + step, in_blocks), 0)] for low in range(0, in_blocks, step)]
        if in_blocks < size:
            if end + size - in_blocks > capacity:
                pages.append([])
                end = 0
            pages[-1].append(_Piece(index, in_blocks, size, end))
            end = pages[-1][-1].end
    return large, pages


def _record_events(devices: set[torch.device]) -> list[torch.Event]:
    """Events after all work that these accelerators have so far; none for a device without streams."""
    accelerator = torch.accelerator.current_accelerator()
    kind = None if accelerator is None else accelerator.type
    return [torch.accelerator.current_stream(device).record_event() for device in devices if device.type == kind]


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor holds neither NaN nor inf. As fast as a sum, which might overflow; `isfinite` is much slower."""
    if not tensor.numel():
        return True
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    low, high = torch.aminmax(tensor.float() if tensor.dtype.itemsize == 1 else tensor)
    return math.isfinite(low) and math.isfinite(high)


def _advise_huge_pages(tensor: Tensor) -> None:
    """Ask Linux for pages of 2 MiB: an update of five averages of a ResNet-18 takes 6 to 20 % less time on them."""
    if sys.platform == "linux" and tensor.device.type == "cpu" and hasattr(mmap, "MADV_HUGEPAGE"):
        start = -(-tensor.data_ptr() // HUGE) * HUGE
        length = (tensor.data_ptr() + tensor.nbytes - start) // HUGE * HUGE  # whole pages of this tensor alone
        if length > 0:  # a hint: where it is refused, nothing happens
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)
