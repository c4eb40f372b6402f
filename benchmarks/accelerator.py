"""Counts the operations of an update or a read on an accelerator, and how often the host waits for it.

Nothing is timed, so no accelerator is needed: tensors on the meta device (shapes without values) stand in for its
tensors, and every operation on them is counted. (Torch's fake tensors would not do: without CUDA they cannot be
indexed, and autograd on them aborts the process.) Run `python benchmarks/accelerator.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `python benchmarks/accelerator.py`

from benchmarks.harness import text_table
from benchmarks.models import build
from benchmarks.peers import PEERS, NotAvailable, Peer, decays
from emabank import EMA, EMABank, recalibrate_batchnorm

META = torch.device("meta")
_COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default, torch.ops.aten._foreach_copy_.default)


class Stream:
    """A stand-in for `torch.Stream`; a subclass sets its accelerator.

    Attributes:
        work: number of operations queued on it.
        seen: per other stream, how many of its operations finish before the next operation on this one.
    """

    accelerator: Accelerator

    def __init__(self, device: torch.device) -> None:
        self.device, self.work = device, 0
        self.seen: dict[Stream, int] = {}

    def __enter__(self) -> Stream:
        self.accelerator.streams.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        self.accelerator.streams.pop()

    def __reduce_ex__(self, protocol: object) -> str:
        raise TypeError("cannot pickle 'torch.Stream' object")  # nor can it be copied, like torch's

    def wait_stream(self, other: Stream) -> None:
        self.seen[other] = other.work

    def record_event(self) -> Event:
        return Event(self)


@dataclass(eq=False)
class Copy:
    """A copy from the device into a host tensor, queued on a stream."""

    target: Tensor
    stream: Stream


class Event:
    """Happens when the copies have arrived that were in flight on its stream when it was recorded."""

    def __init__(self, stream: Stream) -> None:
        self._accelerator = stream.accelerator
        self._copies = [copy for copy in self._accelerator.in_flight if copy.stream is stream]

    def synchronize(self) -> None:
        self._accelerator.wait_for(self._copies, "an event")


class Accelerator(TorchDispatchMode):
    """Counts what happens on meta tensors. Every element that is copied from them is `value`.

    Attributes:
        operations: number of operations on the device; a view does not count, a foreach call counts once.
        waits: the operation or event behind each wait of the host.
        dtypes: all dtypes of tensors on the device.
        in_flight: copies whose values have not arrived on the host yet.
        pinned: the host tensors in pinned memory.
        streams: a stack; the last stream is the current one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.value = 0, 1.0
        self.waits: list[str] = []
        self.pinned: list[Tensor] = []
        self.dtypes: set[torch.dtype] = set()
        self.in_flight: list[Copy] = []
        self._stream = type("Stream", (Stream,), {"accelerator": self})
        self.streams: list[Stream] = [self._stream(META)]

    def wait_for(self, copies: Sequence[Copy], reason: str) -> None:
        """Make the host wait for those of these copies that are still in flight."""
        others = [copy for copy in self.in_flight if copy not in copies]
        if len(others) < len(self.in_flight):
            self.waits.append(reason)
            self.in_flight = others

    def current_stream(self, device: torch.device) -> Stream:
        """In place of `torch.accelerator.current_stream`."""
        return self.streams[-1]

    def arrive(self, func: Any, targets: Sequence[Tensor], *, non_blocking: bool) -> None:
        """Copy values from the device into host tensors."""
        for target in targets:
            target.fill_(self.value)
        if non_blocking:
            self.in_flight += [Copy(target, self.streams[-1]) for target in targets]
        else:
            self.waits.append(str(func))

    @contextmanager
    def running(self) -> Generator[Accelerator]:
        """Enter the mode, with this device's streams and events in place of torch's."""
        with (
            mock.patch("torch.accelerator.current_accelerator", return_value=META),
            mock.patch("torch.accelerator.current_stream", self.current_stream),
            mock.patch("torch.Stream", self._stream),
            mock.patch("torch.accelerator.is_available", return_value=False),  # no random state to preserve
            mock.patch("emabank.bank.check_materialized"),  # which refuses meta tensors
            mock.patch("emabank._model.check_materialized"),
            self,
        ):
            yield self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False  # needs a real accelerator
            self.pinned.append(pinned := func(*args, **kwargs))
            return pinned
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_copy = func in _COPIES
        if not is_copy:
            self.wait_for([copy for copy in self.in_flight if any(overlap(copy.target, t) for t in inputs)], str(func))
        if not any(tensor.is_meta for tensor in inputs) and torch.device(kwargs.get("device") or "cpu") != META:
            return func(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default:
            self.waits.append(str(func))
            return self.value
        if func is torch.ops.aten.is_set_to.default:  # the meta device lacks it
            one, other = args
            same_memory = one.untyped_storage()._cdata == other.untyped_storage()._cdata
            return same_memory and (one.shape, one.stride()) == (other.shape, other.stride())
        if is_copy:
            is_across, result = self._copy_across(func, args, kwargs)
            if is_across:
                return result
        output = func(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        if (outputs or func._schema.is_mutable) and not func.is_view:
            self._count_operation()
        self.dtypes |= {tensor.dtype for tensor in (*inputs, *outputs) if tensor.is_meta}
        return output

    def _copy_across(self, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
        """Whether a copy goes from host to device or back; if so, also its result."""
        sources, result = tree_leaves(args[0]), None
        if func is torch.ops.aten._to_copy.default:
            options = {"dtype": kwargs.get("dtype"), "device": kwargs.get("device")}
            targets = [result := torch.empty_like(sources[0], **options)]
            non_blocking = kwargs.get("non_blocking", False)
        else:
            targets, sources = sources, tree_leaves(args[1])
            result = args[0] if func is torch.ops.aten.copy_.default else None
            non_blocking = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
        if targets[0].is_meta == sources[0].is_meta:
            return False, None
        self._count_operation()
        if targets[0].is_meta:
            is_pinned = all(any(overlap(source, pinned) for pinned in self.pinned) for source in sources)
            if not (is_pinned and non_blocking):  # a copy from pageable memory blocks, even with non_blocking=True
                self.waits.append(str(func))
        else:
            self.arrive(func, targets, non_blocking=non_blocking)
        return True, result

    def _count_operation(self) -> None:
        self.operations += 1
        self.streams[-1].work += 1


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two host tensors share memory."""
    if one.is_meta or other.is_meta or one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return False
    low, high = one.data_ptr(), one.data_ptr() + one.nbytes
    return low < other.data_ptr() + other.nbytes and other.data_ptr() < high


# The table ------------------------------------------------------------------------------------------------------------


Update = Callable[[nn.Module, int], Callable[[], object]]  # takes a model and the number of averages


def of_bank(policy: Any) -> Update:
    """Updates of a bank without warm-up of the decay."""
    return lambda model, count: (
        EMABank(model, [EMA(decay, warmup=None) for decay in decays(count)], every=1, on_nonfinite=policy).update
    )


def of_peer(peer: Peer) -> Update:
    return lambda model, count: peer.build(model, count).update


SHOWN = ("torch AveragedModel", "timm ModelEmaV3", "ema-pytorch, foreach")
UPDATES: dict[str, Update] = {
    "emabank": of_bank("raise"),
    'emabank, on_nonfinite="ignore"': of_bank("ignore"),
    **{peer.name: of_peer(peer) for peer in PEERS if peer.name in SHOWN},
}

READS: dict[str, Callable[[EMABank], object]] = {
    "weights": lambda bank: bank.weights(bank.names[0]),
    "applied": lambda bank: bank.applied(bank.names[0]).__enter__(),
    "module": lambda bank: bank.module(bank.names[0]),
    "state_dict": lambda bank: bank.state_dict(),
    "recalibrate_batchnorm, 10 batches on the device": lambda bank: recalibrate_batchnorm(
        bank, [torch.ones(4, 3, 32, 32, device=META)] * 10
    ),
}


def count(make: Update, averages: int, dtype: torch.dtype) -> tuple[int, int]:
    """Operations and waits of the third update. Before each update all copies arrive, as in a training step."""
    with Accelerator().running() as accelerator:
        update = make(build("resnet18").to(META, dtype), averages)
        for _ in range(3):
            accelerator.operations, accelerator.waits, accelerator.in_flight = 0, [], []
            update()
        return accelerator.operations, len(accelerator.waits)


def count_read(read: Callable[[EMABank], object], averages: int, device: str | None = None) -> int:
    """Waits of a read after the first update."""
    with Accelerator().running() as accelerator:
        bank = EMABank(build("resnet18").to(META), decays(averages), every=1, device=device)
        bank.update()
        accelerator.waits, accelerator.in_flight = [], []
        read(bank)
        return len(accelerator.waits)


def main(words: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(description=__doc__).parse_args(words)
    header = ["one update of a ResNet-18", *(f"{kind}, {n}" for kind in ("float32", "bfloat16") for n in (1, 5))]
    rows: list[list[str]] = []
    for name, make in UPDATES.items():
        try:
            cells = [count(make, n, dtype) for dtype in (torch.float32, torch.bfloat16) for n in (1, 5)]
            rows.append([name, *(f"{operations} / {waits}" for operations, waits in cells)])
        except NotAvailable as error:
            rows.append([name, str(error)])
    print("operations / waits, by dtype of the model and number of averages")
    print(text_table(header, rows))
    banks = {"1 average": (1, None), "5 averages": (5, None), "5 in main memory": (5, "cpu")}
    reads = [[name, *(str(count_read(read, *bank)) for bank in banks.values())] for name, read in READS.items()]
    print("\n" + text_table(["waits of a read", *banks], reads))
    return 0


if __name__ == "__main__":
    sys.exit(main())
