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
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Form:
    """How one tensor of the model lies in memory. Averages keep the live tensor's element order."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, live: Tensor) -> "Form":
        return cls(live.shape, live.stride(), live.dtype, live.device)

    @property
    def is_dense(self) -> bool:
        """Whether the elements fill a stretch of memory without gaps, in whatever order of the dimensions."""
        expected = 1
        for stride, size in sorted((st, n) for st, n in zip(self.stride, self.shape, strict=True) if n != 1):
            if stride != expected:
                return False
            expected *= size
        return True

    @property
    def numel(self) -> int:
        """The number of real values: a complex number is two."""
        return self.shape.numel() * (2 if self.dtype.is_complex else 1)

    def precision(self, least: torch.dtype) -> torch.dtype:
        """The real dtype of its averages: `least`, or wider where the tensor is."""
        real = self.dtype.to_real() if self.dtype.is_complex else self.dtype
        # promote_types knows no common type of the 8-bit floats; they are all narrower than float32.
        return torch.promote_types(least, real) if real.itemsize > 1 else least

    def flat(self, tensor: Tensor) -> Tensor:
        """The real values of a tensor of this form as one dimension in memory order: a view if it is dense."""
        tensor = tensor.as_strided((tensor.numel(),), (1,)) if self.is_dense else tensor.contiguous().view(-1)
        return torch.view_as_real(tensor).view(-1) if tensor.is_complex() else tensor

    def shaped(self, flat: Tensor) -> Tensor:
        """The inverse of `flat`, for values that have been copied out."""
        if self.dtype.is_complex:
            flat = torch.view_as_complex(flat.view(-1, 2))
        return flat.as_strided(self.shape, self.stride) if self.is_dense else flat.view(self.shape)

    def arranged(self, values: Tensor) -> Tensor:
        """Values of this shape as one dimension in the live tensor's memory order (a copy, or a view)."""
        if self.is_dense and values.stride() != self.stride:
            values = torch.empty_strided(self.shape, self.stride, dtype=values.dtype, device=values.device).copy_(
                values
            )
        return self.flat(values)


HUGE = 2 << 20  # bytes of a huge page where most programs run, x86-64 and arm64


def _zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`torch.zeros`, on huge pages as far as the kernel gives them.

    >>> _zeros(2, 3, dtype=torch.float32, device=torch.device("cpu")).sum()
    tensor(0.)
    """
    made = torch.empty(*shape, dtype=dtype, device=device)
    if made.device.type == "cpu":
        _advise(made)  # before the first write: a page has its size from then on
    return made.zero_()


def _advise(tensor: Tensor) -> None:
    start = -(-tensor.data_ptr() // HUGE) * HUGE
    length = (tensor.data_ptr() + tensor.nbytes - start) // HUGE * HUGE  # whole pages, all of them this tensor's
    madvise = _madvise()
    if madvise is not None and length > 0:
        madvise(start, length, mmap.MADV_HUGEPAGE)


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    """The C library's madvise; none where there is no such call or no such advice."""
    if sys.platform != "linux" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    found = getattr(ctypes.CDLL(None), "madvise", None)
    if found is not None:
        found.argtypes, found.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    return found


BLOCK = 1024  # elements; a block and its averages fit in the first-level caches
SMALL = 4 * BLOCK  # below this a tensor costs more to dispatch than to copy once more
MIDDLE = 32 * BLOCK  # below this it does while there is room; beside a busy process each parallel region may stall
SERIAL = 31 * BLOCK  # a copy of at most this size is not spread over threads
SCRATCH = 230 * BLOCK  # elements of the scratch page, 0.9 MiB in float32: what a bank may cost beside its averages
CHUNK = 128 * BLOCK  # elements converted at a time, half a mebibyte: it stays in the second-level caches
CHUNKS = 8  # of which so many at once where the averages are large enough: it stays in the third-level cache
ROUNDS = 16  # updates in which all large tensors are looked at once for NaN and inf: a full look costs 12% of an update

# Not public in torch, but what its optimizers are built on: one call for many tensors.
_copy_all = torch._foreach_copy_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


@dataclass(frozen=True)
class _Piece:
    """A stretch of one tensor that lies in a page: its elements `low` to `high`, at `offset` of the page."""

    index: int
    low: int
    high: int
    offset: int

    @property
    def place(self) -> slice:
        return slice(self.offset, self.offset + self.high - self.low)

    @property
    def stretch(self) -> slice:
        return slice(self.low, self.high)


class _Gather(NamedTuple):
    """How one page is filled from live tensors."""

    joined: list[tuple[list[Tensor], Tensor]]  # live tensors that lie end to end in the scratch page, and where
    places: list[Tensor]  # in the scratch page, of tensors that must be converted or fetched
    lives: list[Tensor]
    looked: Tensor  # all that is filled
    lined: Tensor  # the page itself, in blocks


@dataclass
class _Sources:
    """Views of the live tensors as they stand now, so that an update need not make any. Never saved, never copied."""

    scratch: Tensor
    gathers: list[_Gather]  # one a page
    direct: list[tuple[Tensor, Tensor]]  # blocks, live
    converted: list[tuple[Tensor, Tensor]]  # blocks, live of another precision, in parts that fit the scratch page
    fetched: list[tuple[Tensor, Tensor]]  # blocks, live on another device, in parts that fit half of it
    large: list[Tensor]  # live, without their ends
    turns: list[list[Tensor]]  # the same, cut into ROUNDS equal shares, unless they are small and come with glances
    glances: list[_Gather]  # the last page and a share of the large ones, to be looked at together: one a turn, or none
    numbers: "array[float]"  # the weights of the averages; on a CPU `weights` is a view of the same memory
    weights: Tensor
    loose: list[tuple[Tensor, Tensor]]  # copies of live tensors with gaps in memory, and those tensors
    afar: list[torch.device]  # accelerators from which copies are on their way
    page: int = -1  # which page the scratch page holds


class Shelf:
    """The averages of all tensors that share a device and a precision."""

    def __init__(self, forms: dict[int, Form], count: int, dtype: torch.dtype, device: torch.device) -> None:
        self.forms = forms
        self.dtype, self.device = dtype, device
        self.count = count
        self.blocks: dict[int, Tensor] = {}
        self.pages: list[tuple[Tensor, list[_Piece]]] = []
        self.sources: _Sources | None = None
        gathered = _gathered_whole(forms)
        pieces: list[_Piece] = []
        filled = 0
        for index in sorted(forms, key=lambda index: forms[index].numel):
            size = forms[index].numel
            body = 0 if index in gathered else size // BLOCK
            if body:
                self.blocks[index] = _zeros(body, count, BLOCK, dtype=dtype, device=device)
            for low in range(body * BLOCK, size, SERIAL):
                high = min(low + SERIAL, size)
                if filled + high - low > SCRATCH:
                    self.pages.append(
                        (_zeros(math.ceil(filled / BLOCK), count, BLOCK, dtype=dtype, device=device), pieces)
                    )
                    pieces, filled = [], 0
                pieces.append(_Piece(index, low, high, filled))
                filled += high - low
        if pieces or not self.pages:
            self.pages.append((_zeros(math.ceil(filled / BLOCK), count, BLOCK, dtype=dtype, device=device), pieces))
        self.pages.reverse()  # the last page need not be gathered twice (see move), so it is the one with most pieces

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "sources": None}

    def bind(self, lives: Sequence[Tensor]) -> None:
        """Take views of the live tensors."""
        flats = {index: form.flat(lives[index]) for index, form in self.forms.items()}
        loose = [(f.shaped(flats[i]), lives[i]) for i, f in self.forms.items() if not f.is_dense]
        afar = sorted({f.device for f in flats.values() if f.device.type != "cpu" and f.device != self.device}, key=str)
        size = max((blocks.shape[0] * BLOCK for blocks, _ in self.pages), default=0)
        large = [i for i in self.blocks if flats[i].dtype != self.dtype or flats[i].device != self.device]
        little = sum(blocks.numel() for blocks in self.blocks.values()) // 100 // BLOCK * BLOCK  # 1% of the averages
        if large:  # fewer and larger conversions wait less for one another
            longest = max(self.blocks[index].shape[0] * BLOCK for index in large)
            size = max(size, min(longest, max(CHUNK, min(little, CHUNKS * CHUNK))))
        if afar:  # larger copies use the bus better
            size = max(size, little, 2 * BLOCK)
        bodies = [flats[index][: blocks.shape[0] * BLOCK] for index, blocks in self.blocks.items()]
        shares = _shares(bodies)
        size += len(bodies)
        room = max(_length(share) for share in shares)
        glancing = bool(bodies) and not large and not afar and size + room <= SCRATCH
        if glancing:
            size += room
        pinned = bool(afar) and self.device.type == "cpu"
        scratch = torch.zeros(size, dtype=self.dtype, device=self.device, pin_memory=pinned)
        gathers: list[_Gather] = []
        glances: list[_Gather] = []
        for blocks, pieces in self.pages:
            end = blocks.shape[0] * BLOCK
            lined = scratch[:end].view(-1, 1, BLOCK)
            there = [(piece.offset, flats[piece.index][piece.stretch]) for piece in pieces]
            if len(gathers) + 1 == len(self.pages) and bodies:
                # With the last page comes one value of each large tensor, to be looked at only.
                there += [(end + number, body[:1]) for number, body in enumerate(bodies)]
                end += len(bodies)
                if glancing:
                    for share in shares:
                        seen = [*there, *zip(_offsets(share, end), share, strict=True)]
                        glances.append(_Gather(*_joined(scratch, seen), scratch[: end + _length(share)], lined))
                    shares = [[] for _ in shares]
            gathers.append(_Gather(*_joined(scratch, there), scratch[:end], lined))
        numbers = array("d" if self.dtype is torch.float64 else "f", [0.0] * self.count)
        weights = torch.frombuffer(numbers, dtype=self.dtype).view(-1, 1).to(self.device)
        self.sources = _Sources(scratch, gathers, [], [], [], bodies, shares, glances, numbers, weights, loose, afar)
        for blocks, body in zip(self.blocks.values(), bodies, strict=True):
            self._bind_large(self.sources, blocks, body)

    def _bind_large(self, sources: _Sources, blocks: Tensor, live: Tensor) -> None:
        if live.dtype == self.dtype and live.device == self.device:
            sources.direct.append((blocks, live.view(-1, 1, BLOCK)))
            return
        elsewhere = live.device != self.device
        part = max(sources.scratch.numel() // BLOCK // (2 if elsewhere else 1), 1)
        pairs = zip(blocks.split(part), live.split(part * BLOCK), strict=True)
        (sources.fetched if elsewhere else sources.converted).extend(pairs)

    # The pass ---------------------------------------------------------------------------------------------------------

    def look(self, turn: int | None) -> Iterator[Tensor]:
        """Sums (for what is gathered, of squares) that are finite only if what they cover is: everything; or (with a
        turn) all that is gathered, one value of each large tensor, and a share of them all, another one each turn.
        """
        sources = self._fresh_sources()
        sources.page = -1  # what an earlier look left there may be out of date
        for page, gather in enumerate(sources.gathers):
            if sources.glances and turn is not None and page + 1 == len(self.pages):
                gather = sources.glances[turn]
            self._gather(sources, page, gather)
            yield gather.looked.dot(gather.looked)
        for live in sources.large if turn is None else sources.turns[turn]:
            yield (live if live.dtype.itemsize > 1 else live.float()).sum()

    def move(self, weights: list[float]) -> None:
        """Move every average towards the live tensors, each by its own weight."""
        sources = self._fresh_sources()
        sources.numbers[:] = array(sources.numbers.typecode, weights)
        weight = sources.weights
        if self.device.type != "cpu":
            weight.copy_(torch.frombuffer(sources.numbers, dtype=self.dtype).view(-1, 1))
        for page in reversed(range(len(self.pages))):  # the page looked at last is still in the scratch page
            self._gather(sources, page)
            self.pages[page][0].lerp_(sources.gathers[page].lined, weight)
        sources.page = -1  # the live tensors will have moved on by the next update
        for blocks, live in sources.direct:
            blocks.lerp_(live, weight)
        for blocks, live in sources.converted:
            blocks.lerp_(sources.scratch[: live.numel()].copy_(live).view(-1, 1, BLOCK), weight)
        if sources.fetched:
            self._move_fetched(sources, weight)

    def _move_fetched(self, sources: _Sources, weight: Tensor) -> None:
        """Two halves of the scratch page in turn: the next part is on its way while this one is averaged.

        Copies are issued on the stream that the caller computes on, so that each waits for the optimizer step before it
        and the next one waits for it; this thread waits for a part only when that part's turn has come. A stream of
        their own would gain nothing: no other work is queued until the last part is averaged and the caller goes on.
        """
        halves = sources.scratch.split(sources.scratch.numel() // BLOCK // 2 * BLOCK)
        coming = self._fetch(sources.fetched[0][1], halves[0])
        for number, (blocks, live) in enumerate(sources.fetched):
            arrived = coming
            if number + 1 < len(sources.fetched):
                coming = self._fetch(sources.fetched[number + 1][1], halves[(number + 1) % 2])
            if arrived is not None:
                arrived.synchronize()
            blocks.lerp_(halves[number % 2][: live.numel()].view(-1, 1, BLOCK), weight)

    def _fetch(self, live: Tensor, half: Tensor) -> torch.Event | None:
        on_cpu = live.device.type == "cpu"
        # A CPU's weights are copied before this returns: from pinned memory they would still be on their way when the
        # next optimizer step, which no stream holds back, writes them.
        half[: live.numel()].copy_(live, non_blocking=not on_cpu)
        if on_cpu or self.device.type != "cpu":
            return None  # done already, or ordered by the averages' own stream
        return torch.accelerator.current_stream(live.device).record_event()

    def _gather(self, sources: _Sources, page: int, gather: _Gather | None = None) -> None:
        if sources.page != page:
            gather = gather or sources.gathers[page]
            for lives, place in gather.joined:
                torch.cat(lives, out=place)
            if gather.places:
                _copy_all(gather.places, gather.lives, non_blocking=bool(sources.afar))
            for device in sources.afar:
                torch.accelerator.current_stream(device).synchronize()
            sources.page = page

    def _fresh_sources(self) -> _Sources:
        assert self.sources is not None, "bind comes first"
        for copy, live in self.sources.loose:
            copy.copy_(live)
        return self.sources

    # One average ------------------------------------------------------------------------------------------------------

    def overlap(self, average: int) -> tuple[float, float, float]:
        """The inner products of one average, each part of it minus its mean, with the live tensors and with itself, and
        the variance of the first if the live tensors were any others of their length.

        Constants, such as the ones that a norm begins with, add nothing. A part at a time.
        """
        sources = self._fresh_sources()
        sources.page = -1
        pairs: list[tuple[Tensor, Tensor]] = [*sources.converted, *sources.fetched]
        for blocks, live in sources.direct:
            pairs += zip(blocks.split(CHUNK // BLOCK), live.split(CHUNK // BLOCK), strict=True)
        products = [_products(blocks[:, average], live) for blocks, live in pairs]
        for page, (blocks, pieces) in enumerate(self.pages):
            self._gather(sources, page)
            old = blocks[:, average].reshape(-1)
            products += [_products(old[piece.place], sources.scratch[piece.place]) for piece in pieces]
        return summed(products)

    def read(self, average: int, out: dict[int, Tensor]) -> None:
        """Put copies of one average's tensors into `out`, in the live tensors' shapes and memory order."""
        flats = {i: torch.empty(form.numel, dtype=self.dtype, device=self.device) for i, form in self.forms.items()}
        for index, blocks in self.blocks.items():
            flats[index][: blocks.shape[0] * BLOCK].view(-1, BLOCK).copy_(blocks[:, average])
        for blocks, pieces in self.pages:
            page = blocks[:, average].reshape(-1)
            for piece in pieces:
                flats[piece.index][piece.stretch] = page[piece.place]
        out.update({index: form.shaped(flats[index]) for index, form in self.forms.items()})

    def write(self, average: int, values: Sequence[Tensor]) -> None:
        """Set one average's tensors."""
        flats = {index: form.arranged(values[index]) for index, form in self.forms.items()}
        for index, blocks in self.blocks.items():
            blocks[:, average].copy_(flats[index][: blocks.shape[0] * BLOCK].view(-1, BLOCK))
        for blocks, pieces in self.pages:
            page = torch.zeros(blocks.shape[0] * BLOCK, dtype=self.dtype, device=self.device)
            for piece in pieces:
                page[piece.place].copy_(flats[piece.index][piece.stretch])
            blocks[:, average].copy_(page.view(-1, BLOCK))


def _products(old: Tensor, live: Tensor) -> tuple[float, float, float]:
    old = old.reshape(-1)
    old = old - old[0]  # so that a constant is exactly 0
    old -= old.mean()
    live = live.reshape(-1).to(old)
    own = float(old.dot(old))
    return float(old.dot(live)), own, own * float(live.dot(live)) / live.numel()


def summed(products: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """The sums of what several parts overlap.

    >>> summed([(1.0, 2.0, 3.0), (1.0, 1.0, 1.0)])
    (2.0, 3.0, 4.0)
    """
    shared, own, variance = map(math.fsum, zip(*products, strict=True)) if products else (0.0, 0.0, 0.0)
    return shared, own, variance


def _joined(
    scratch: Tensor, there: Sequence[tuple[int, Tensor]]
) -> tuple[list[tuple[list[Tensor], Tensor]], list[Tensor], list[Tensor]]:
    """What of these tensors, each with its offset in the scratch page, one `cat` can put there, and what a copy must.

    On a CPU a `cat` of fewer elements than torch spreads over threads is one loop in C, at half the price of as many
    copies.
    """
    runs: list[tuple[int, list[Tensor]]] = []
    places: list[Tensor] = []
    lives: list[Tensor] = []
    end = filled = 0
    for offset, live in there:
        size = live.numel()
        if live.dtype != scratch.dtype or live.device != scratch.device or live.device.type != "cpu":
            places.append(scratch[offset : offset + size])
            lives.append(live)
            continue
        if not runs or offset != end or filled + size > SERIAL:
            runs.append((offset, []))
            filled = 0
        runs[-1][1].append(live)
        filled, end = filled + size, offset + size
    joined = [(run, scratch[start : start + _length(run)]) for start, run in runs]
    return joined, places, lives


def _length(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _offsets(tensors: Sequence[Tensor], start: int) -> list[int]:
    """Where tensors begin that lie end to end from `start` on."""
    return [start + _length(tensors[:number]) for number in range(len(tensors))]


def _shares(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """One-dimensional tensors, end to end, cut into ROUNDS equal shares."""
    total = _length(tensors)
    borders = [total * turn // ROUNDS for turn in range(ROUNDS + 1)]
    shares: list[list[Tensor]] = []
    for low, high in pairwise(borders):
        share: list[Tensor] = []
        start = 0
        for tensor in tensors:
            part = tensor[max(low - start, 0) : max(high - start, 0)]
            share += [part] if part.numel() else []
            start += tensor.numel()
        shares.append(share)
    return shares


def _gathered_whole(forms: Mapping[int, Form]) -> set[int]:
    """Which tensors are gathered into pages: all the small ones, and of the middling as many as fit beside them."""
    chosen: set[int] = set()
    filled = sum(form.numel % BLOCK for form in forms.values() if form.numel >= SMALL)  # the ends of the others
    for index in sorted(forms, key=lambda index: forms[index].numel):
        size = forms[index].numel
        filled += size if size < SMALL else size - size % BLOCK
        if size >= SMALL and (size >= MIDDLE or filled > SCRATCH):
            break
        chosen.add(index)
    return chosen


class Storage:
    """`count` averages of a list of tensors, all equal to those tensors at first.

    `dtype` is the least precision: a float64 tensor is averaged in float64. `device=None` keeps each average beside
    its live tensor.

    >>> live = [torch.zeros(3), torch.zeros(2, 2)]
    >>> storage = Storage(live, 2, dtype=torch.float32, device=None)
    >>> _ = [tensor.fill_(1.0) for tensor in live]
    >>> storage.move([0.5, 1.0])
    >>> storage.read(0)[0], storage.read(1)[1]
    (tensor([0.5000, 0.5000, 0.5000]), tensor([[1., 1.],
            [1., 1.]]))
    """

    def __init__(self, lives: Sequence[Tensor], count: int, *, dtype: torch.dtype, device: torch.device | None) -> None:
        if device is not None and device.type == "meta":
            raise ValueError("device must be one that holds values, such as 'cpu', or None; got 'meta'.")
        self.count, self.dtype, self.device = count, dtype, device
        self._forms = [Form.of(live) for live in lives]
        groups: dict[tuple[torch.device, torch.dtype], dict[int, Form]] = {}
        for index, form in enumerate(self._forms):
            place = device or form.device, form.precision(dtype)
            groups.setdefault(place, {})[index] = form
        self._shelves = [Shelf(forms, count, precision, place) for (place, precision), forms in groups.items()]
        self._turn = 0
        self._bind(lives)
        for average in range(count):
            self.write(average, lives)

    def bound_to(self, lives: Sequence[Tensor]) -> "Storage":
        """This storage with views of these tensors; another one with the same averages where their form has changed."""
        if [Form.of(live) for live in lives] == self._forms:
            self._bind(lives)
            return self
        return self.rebuilt(lives, device=self.device)

    def rebuilt(self, lives: Sequence[Tensor], *, device: torch.device | None) -> "Storage":
        """The same averages laid out anew, for tensors of another form or for another place."""
        other = Storage(lives, self.count, dtype=self.dtype, device=device)
        for average in range(self.count):
            other.write(average, self.read(average))
        return other

    def looks_finite(self, *, whole: bool) -> bool:
        """False if a live tensor holds NaN or inf, or a sum overflowed. Unless `whole`, of large tensors one value each
        and a sixteenth of all are looked at, another sixteenth each time.
        """
        turn = None if whole else self._turn
        self._turn = (self._turn + 1) % ROUNDS
        sums = [total for shelf in self._shelves for total in shelf.look(turn)]
        if self._away:  # one wait for each accelerator and precision, not one for each tensor
            by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
            for total in sums:
                wide = total.to(torch.promote_types(total.dtype, torch.float32))
                by_kind.setdefault((wide.device, wide.dtype), []).append(wide)
            sums = [torch.stack(totals).sum() for totals in by_kind.values()]
        return all(math.isfinite(total.item()) for total in sums)

    def move(self, weights: list[float]) -> None:
        """Move average k towards the live tensors by weights[k], for all k in one pass."""
        for shelf in self._shelves:
            shelf.move(weights)

    def overlap(self, average: int) -> tuple[float, float, float]:
        """What one average and the live tensors have in common; see `Shelf.overlap`."""
        return summed([shelf.overlap(average) for shelf in self._shelves])

    def read(self, average: int) -> list[Tensor]:
        """Copies of the tensors of one average."""
        out: dict[int, Tensor] = {}
        for shelf in self._shelves:
            shelf.read(average, out)
        return [out[index] for index in range(len(self._forms))]

    def write(self, average: int, values: Sequence[Tensor]) -> None:
        """Set the tensors of one average."""
        for shelf in self._shelves:
            shelf.write(average, values)

    def as_kept(self, lives: Sequence[Tensor]) -> list[Tensor]:
        """Copies of these tensors in the precision and place that their averages have."""
        kinds = zip(lives, self.dtypes(), strict=True)
        return [live.to(self.device or live.device, dtype, copy=True) for live, dtype in kinds]

    def dtypes(self) -> list[torch.dtype]:
        """The dtype that the averages of each tensor have."""
        precisions = [form.precision(self.dtype) for form in self._forms]
        pairs = zip(self._forms, precisions, strict=True)
        return [precision.to_complex() if form.dtype.is_complex else precision for form, precision in pairs]

    def _bind(self, lives: Sequence[Tensor]) -> None:
        for shelf in self._shelves:
            shelf.bind(lives)
        self._away = any(live.device.type != "cpu" for live in lives)
