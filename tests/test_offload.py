"""storage.py: averages kept away from an accelerator; what overlaps, and who waits for whom."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from emabank import _storage as room
from emabank._storage import Storage

AFAR = torch.device("cuda", 0)


class _Accelerator(TorchFunctionMode):
    """A stand-in, played by the CPU: some tensors say that they are on it, and copies from them that are not waited for
    queue in its one stream. A copy is made when somebody waits for it (`late`), or else as soon as it is issued.
    """

    def __init__(self, lives: list[Tensor], monkeypatch: pytest.MonkeyPatch, *, late: bool) -> None:
        super().__init__()
        self.late, self.log, self.pinned = late, [], []
        self._there = {live.untyped_storage().data_ptr() for live in lives}
        self._issued, self._made = [], 0
        monkeypatch.setattr(torch.accelerator, "current_stream", self._stream)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func == Tensor.device.__get__ and self._is_there(args[0]):
            return AFAR
        if func is Tensor.copy_ and kwargs.get("non_blocking"):
            assert self._is_there(args[1])
            self.log.append(("copy", args[0].data_ptr()))
            return self._issue(partial(func, *args), args[0])
        if func is torch._foreach_copy_ and kwargs.get("non_blocking"):
            return self._issue(partial(func, *args), None)
        if func is Tensor.lerp_:
            self.log.append(("lerp", args[1].data_ptr()))
        if func is torch.zeros and kwargs.pop("pin_memory", False):
            self.pinned.append(result := func(*args, **kwargs))
            return result
        return func(*args, **kwargs)

    def _is_there(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._there

    def _issue(self, action: Callable[[], object], result: Tensor | None) -> Tensor | None:
        self._issued.append(action)
        if not self.late:
            self.synchronize()
        return result

    # What a stream and an event are asked for ------------------------------------------------------------------------

    def _stream(self, device: torch.device) -> "_Accelerator":
        assert device == AFAR
        return self

    def record_event(self) -> "_Event":
        return _Event(self, len(self._issued), self.log[-1][1])

    def synchronize(self, upto: int | None = None) -> None:
        for action in self._issued[self._made : upto]:
            action()
        self._made = max(self._made, len(self._issued) if upto is None else upto)


class _Event:
    def __init__(self, stream: _Accelerator, position: int, half: int) -> None:
        self._stream, self._position, self._half = stream, position, half

    def synchronize(self) -> None:
        self._stream.synchronize(self._position)
        self._stream.log.append(("wait", self._half))


def offloaded(monkeypatch: pytest.MonkeyPatch, *, late: bool) -> tuple[list[tuple[str, int]], bool, _Accelerator]:
    """One update of averages on the CPU of weights elsewhere: what was done in which order, and whether it is right."""
    torch.manual_seed(0)
    lives = [torch.randn(n) for n in (500_000, 200_000, 7000, 10)] + [torch.randn(300_000).bfloat16()]
    plain = Storage(lives, 2, dtype=torch.float32, device=None)
    accelerator = _Accelerator(lives, monkeypatch, late=late)
    with accelerator:
        away = Storage(lives, 2, dtype=torch.float32, device=torch.device("cpu"))
    for _ in range(2):
        for live in lives:
            live.add_(torch.randn_like(live))
        plain.move([0.1, 0.5])
        with accelerator:
            accelerator.log.clear()
            away.move([0.1, 0.5])
    same = all(torch.equal(a, b) for k in (0, 1) for a, b in zip(plain.read(k), away.read(k), strict=True))
    return accelerator.log, same, accelerator


@pytest.mark.parametrize("late", [True, False])
def test_copies_from_an_accelerator_overlap_with_averaging_and_nobody_reads_or_writes_too_early(
    monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    log, same, accelerator = offloaded(monkeypatch, late=late)
    assert same
    at = {what: [place for place, (kind, _) in enumerate(log) if kind == what] for what in ("copy", "wait")}
    halves = [log[place][1] for place in at["copy"]]
    assert len(halves) > 6 and len(set(halves)) == 2 and all(a != b for a, b in pairwise(halves))  # in turn
    lerps = [place for place, (kind, half) in enumerate(log) if kind == "lerp" and place > at["copy"][0]]
    assert [log[place][1] for place in lerps] == [log[place][1] for place in at["wait"]] == halves
    for number, (copied, waited, averaged) in enumerate(zip(at["copy"], at["wait"], lerps, strict=True)):
        assert copied < waited < averaged  # a part has arrived before it is averaged
        assert at["copy"][number + 1 : number + 2] < [averaged]  # the next one is on its way by then
        assert averaged < min(at["copy"][number + 2 :], default=len(log))  # and its half is free before it is filled
    scratch = [tensor.untyped_storage().data_ptr() for tensor in accelerator.pinned]
    assert min(halves) in scratch  # without pinned memory nothing overlaps


def test_the_stand_in_sees_a_copy_that_nobody_waits_for_and_a_half_that_is_filled_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetch = room.Shelf._fetch
    with monkeypatch.context() as patch:
        patch.setattr(room.Shelf, "_fetch", lambda shelf, live, half: [fetch(shelf, live, half), None][1])
        assert [offloaded(monkeypatch, late=late)[1] for late in (True, False)] == [False, True]

    def all_at_once(shelf: room.Shelf, sources: room._Sources, weight: Tensor) -> None:
        halves = sources.scratch.split(sources.scratch.numel() // room.BLOCK // 2 * room.BLOCK)
        coming = [shelf._fetch(live, halves[number % 2]) for number, (_, live) in enumerate(sources.fetched)]
        for number, (blocks, live) in enumerate(sources.fetched):
            coming[number].synchronize()
            blocks.lerp_(halves[number % 2][: live.numel()].view(-1, 1, room.BLOCK), weight)

    monkeypatch.setattr(room.Shelf, "_move_fetched", all_at_once)
    assert [offloaded(monkeypatch, late=late)[1] for late in (True, False)] == [True, False]


def test_weights_of_a_cpu_are_never_left_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """From pinned memory to averages on an accelerator, the next optimizer step could overtake the copy."""
    live, half = torch.randn(10), torch.zeros(20)
    shelf = Storage([torch.zeros(3)], 1, dtype=torch.float32, device=None)._shelves[0]
    shelf.device = AFAR
    with _Accelerator([], monkeypatch, late=True):  # which refuses such a copy, unless it waits
        assert shelf._fetch(live, half) is None
    assert torch.equal(half[:10], live)
