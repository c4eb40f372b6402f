"""A bank on an accelerator: no float64, which the device may lack, and no needless waits.

The meta device stands in for one (benchmarks/accelerator.py): it counts operations, streams and events.
"""

import copy
import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from benchmarks.accelerator import READS, UPDATES, Accelerator, count, overlap
from emabank import EMA, EMABank, PowerEMA, Uniform, recalibrate_batchnorm
from emabank._swap import Copies
from tests.support.models import build, train

RULES = {"ema": EMA(0.9), "settled": EMA(0.9, warmup=None), "uniform": Uniform(), "power": PowerEMA(0.1)}


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    layers = nn.Sequential(
        nn.Conv2d(3, 30, 3), nn.BatchNorm2d(30), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(270, 5000)
    )
    return layers.to("meta", dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_operation_uses_float64(dtype: torch.dtype) -> None:
    model = net(dtype)
    with Accelerator().running() as accelerator:
        bank = EMABank(model, [0.9, 0.99], every=1)
        assert bank.update()
        assert bank.update()
        bank.weights(0.9)
        bank.call(0.9, torch.ones(17, 3, 5, 5, dtype=dtype, device="meta"))
        with bank.applied(0.9):
            pass
        bank.module(0.99)
        batches = [torch.ones(17, 3, 5, 5, dtype=dtype), torch.ones(1, 3, 3, 3, dtype=dtype)]
        recalibrate_batchnorm(bank, batches)
        saved = tree_map_only(Tensor, lambda t: torch.zeros(t.shape, dtype=t.dtype), bank.state_dict())
        bank.load_state_dict(saved)
        with bank.applied(0.9, batchnorm="recomputed"):
            pass
        recalibrate_batchnorm(model, batches)
    assert accelerator.operations > 100
    assert accelerator.dtypes >= {torch.float32, dtype}
    assert not accelerator.dtypes & {torch.float64, torch.complex128}


@pytest.mark.parametrize("policy", ["raise", "ignore"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_does_not_make_the_host_wait(policy: Any, dtype: torch.dtype) -> None:
    with Accelerator().running() as accelerator:
        bank = EMABank(net(dtype), RULES, every=1, on_nonfinite=policy)
        accelerator.waits = []
        assert bank.update()  # the first one also checks for weights loaded since
        assert len(accelerator.waits) == 1
        for _ in range(3):
            # By the next update all copies of the last one have arrived.
            accelerator.waits, accelerator.in_flight = [], []
            assert bank.update()
            assert accelerator.waits == []


@pytest.mark.parametrize("averages", [1, 5])
def test_an_update_of_a_bf16_resnet_takes_few_operations(averages: int) -> None:
    operations, waits = count(UPDATES["emabank"], averages, torch.bfloat16)
    assert operations < 40
    assert waits == 0


def test_a_constant_decay_is_sent_once() -> None:
    def operations(rule: EMA) -> int:
        with Accelerator().running() as accelerator:
            bank = EMABank(net(), [rule], every=1)
            for _ in range(3):
                accelerator.operations, accelerator.in_flight = 0, []
                bank.update()
            return accelerator.operations

    assert operations(EMA(0.9, warmup=None)) == operations(EMA(0.9)) - 1


def test_skip_is_exact_and_waits_once() -> None:
    with Accelerator().running() as accelerator:
        bank = EMABank(net(), RULES, every=1, on_nonfinite="skip")
        bank.update()
        accelerator.waits = []
        accelerator.value = float("nan")
        assert not bank.update()
        assert bank.num_skipped == 1
        assert len(accelerator.waits) == 1


@pytest.mark.parametrize("read", list(READS)[:4])
def test_a_read_waits_once_not_once_per_tensor(read: str) -> None:
    assert waits_of(READS[read]) == 1


@pytest.mark.parametrize("read", READS)
def test_a_read_of_offloaded_averages_sends_them_without_a_wait(read: str) -> None:
    """A recalibration waits once, for its measurements."""
    assert waits_of(READS[read], device="cpu") == read.startswith("recalibrate")


@pytest.mark.parametrize(("together", "expected"), [(2**24, 1), (10_000, 2)])
def test_values_for_another_device_are_sent_together_up_to_a_limit(together: int, expected: int) -> None:
    with mock.patch("emabank._swap.MAX_TOGETHER", together), Accelerator().running() as accelerator:
        bank = EMABank(net(), [0.9], every=1, device="cpu")
        bank.update()
        accelerator.pinned = []
        bank.module(0.9)
        assert len(accelerator.pinned) == expected


class OnAnotherDevice(Tensor):
    """A CPU tensor that claims to be on another device."""

    device = torch.device("meta")  # pyright: ignore[reportAssignmentType]


def test_values_from_another_device_arrive_in_the_right_tensors() -> None:
    torch.manual_seed(0)
    shapes = [(3, 4), (), (0,), (2, 3, 4, 5), (2, 3, 4, 5), (7,)]
    for dtypes in ([torch.float32], [torch.bfloat16, torch.float32]):
        sources = [torch.randn(shape, dtype=dtypes[i % len(dtypes)]) for i, shape in enumerate(shapes)]
        sources[3] = sources[3].to(memory_format=torch.channels_last)
        targets = [torch.full_like(source, math.nan, dtype=torch.float32).contiguous() for source in sources]
        targets[4] = targets[4].to(memory_format=torch.channels_last)
        with mock.patch("emabank._swap.MAX_TOGETHER", 100):
            copies = Copies()
            for target, source in zip(targets, sources, strict=True):
                copies.add(target, source.as_subclass(OnAnotherDevice))
            assert targets[5].isnan().all()  # not yet copied
            copies.finish()
        torch.testing.assert_close(targets, [source.float() for source in sources], rtol=0, atol=0)


@pytest.mark.parametrize(("batches", "host_batches"), [(2, 0), (50, 0), (2, 2)])
def test_a_recalibration_waits_once(batches: int, host_batches: int) -> None:
    """Not once per layer, batch or average. Each batch in pageable memory adds a wait for its copy."""
    loader = [torch.ones(4, 3, 5, 5, device="cpu" if host_batches else "meta")] * batches
    assert waits_of(lambda bank: recalibrate_batchnorm(bank, loader)) == 1 + host_batches


def test_a_long_recalibration_keeps_little_on_the_device() -> None:
    loader = [torch.ones(4, 3, 5, 5, device="meta")] * 10  # 2 averages × mean and variance of 30 channels
    with mock.patch("emabank.batchnorm.MAX_UNPOOLED", 3 * 2 * 2 * 30):
        assert waits_of(lambda bank: recalibrate_batchnorm(bank, loader)) == 1 + 3


def waits_of(read: Callable[[EMABank], object], device: str | None = None) -> int:
    with Accelerator().running() as accelerator:
        bank = EMABank(net(), [0.9, 0.99], every=1, device=device)
        bank.update()
        accelerator.waits, accelerator.in_flight = [], []
        read(bank)
        return len(accelerator.waits)


class Offload(Accelerator):
    """Checks that no stream and no buffer is used too early. Every copy into a buffer writes the next number."""

    def __init__(self) -> None:
        super().__init__()
        self.number = self.overlapped = 0  # copies, and averaging steps during a copy
        self.unread: list[Tensor] = []  # copied into a buffer and not averaged yet

    def arrive(self, func: Any, targets: Any, *, non_blocking: bool) -> None:
        if func is torch.ops.aten._foreach_copy_.default:
            self.number += 1
        if non_blocking:
            compute, side = self.streams[0], self.streams[-1]
            assert side is not compute
            assert side.seen.get(compute) == compute.work, "the copy may miss the optimizer step"
            assert not any(overlap(target, part) for target in targets for part in self.unread), "still being averaged"
            self.unread += targets
        self.value = float(self.number)
        super().arrive(func, targets, non_blocking=non_blocking)
        self.value = 1.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten.lerp_.Tensor:
            return super().__torch_dispatch__(func, types, args, kwargs)
        late = [copy for copy in self.in_flight if overlap(copy.target, args[1])]
        assert not late, "averaged before it has arrived"
        self.overlapped += bool(self.in_flight)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.unread = [part for part in self.unread if not overlap(part, args[1])]
        return result


def make_offloaded_bank() -> tuple[nn.Module, EMABank]:
    """The parameters have three dtypes and many sizes; one is not contiguous."""
    model = nn.Sequential(
        nn.Linear(1000, 1000, device="meta"),
        nn.Linear(700, 700, device="meta", dtype=torch.float64),
        nn.Linear(700, 700, device="meta", dtype=torch.bfloat16),
        nn.Linear(300, 300, device="meta"),
    )
    model[3].weight = nn.Parameter(torch.empty(300, 600, device="meta")[:, ::2])
    return model, EMABank(model, [EMA(0.0)], every=1, device="cpu", on_nonfinite="ignore")


def count_copies_of_an_update(accelerator: Offload, model: nn.Module, bank: EMABank) -> int:
    """Also checks that every copy reached the average."""
    for _ in range(2):
        for parameter in model.parameters():
            parameter.detach().mul_(0.9)  # the optimizer step, still in the queue of the device
        accelerator.waits, accelerator.number, accelerator.overlapped = [], 0, 0
        bank.update()
        assert accelerator.in_flight == accelerator.unread == []  # the next step may write into the weights
    copies = accelerator.number
    assert copies > 10
    assert {float(x) for w in bank.weights("ema-0").values() for x in w.unique()} == set(range(1, copies + 1))
    return copies


def test_offloaded_averages_are_updated_on_a_side_stream_through_two_pinned_buffers() -> None:
    accelerator = Offload()
    with accelerator.running():
        model, bank = make_offloaded_bank()
        assert accelerator.pinned
        copies = count_copies_of_an_update(accelerator, model, bank)
        assert accelerator.waits == ["an event"] * copies
        assert accelerator.overlapped == copies - 2  # all but the last of each precision
        twin = copy.deepcopy(bank)
        assert count_copies_of_an_update(accelerator, twin.model, twin) == copies


@pytest.mark.parametrize(
    ("name", "value"),
    [("torch.accelerator.current_accelerator", lambda: None), ("torch.Stream", object)],
    ids=["not an accelerator", "torch 2.6"],
)
def test_without_streams_every_copy_blocks(name: str, value: object) -> None:
    accelerator = Offload()
    with accelerator.running(), mock.patch(name, value):
        model, bank = make_offloaded_bank()
        copies = count_copies_of_an_update(accelerator, model, bank)
        assert accelerator.waits == ["aten._foreach_copy_.default"] * copies


def test_averaging_does_not_recompile_a_compiled_model() -> None:
    compilations = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        compilations.append(graph)
        return graph.forward

    def evaluate(model: nn.Module) -> None:
        with torch.no_grad():
            model.eval()(torch.randn(16, 6))

    compiled: Any = torch.compile(build("mlp"), backend=backend)
    train(compiled, 1)
    evaluate(compiled)
    before = len(compilations)
    bank = EMABank(compiled, [0.5, 0.9], every=1)

    def after() -> None:
        bank.update()
        with bank.applied(0.9):
            evaluate(compiled)
        bank.evaluate(evaluate)
        compiled.train()

    train(compiled.train(), 3, after)
    assert before >= 2
    assert len(compilations) == before


RAISING: dict[str, Callable[[EMABank], object]] = {
    "update": lambda bank: bank.update(),
    "weights": lambda bank: bank.weights("ema"),
    "applied": lambda bank: bank.applied("ema").__enter__(),
    "state_dict": lambda bank: bank.state_dict(),
    "reset": lambda bank: bank.reset(),
    "deepcopy": copy.deepcopy,
}


def counts(bank: EMABank) -> dict[str, object]:
    return {name: {**saved, "tensors": None} for name, saved in bank.state_dict()["averages"].items()}


@pytest.mark.parametrize("read", RAISING)
def test_the_next_update_or_read_reports_a_nan_sample_and_does_not_count_it(read: str) -> None:
    with Accelerator().running() as accelerator:
        bank = EMABank(net(torch.float32), RULES, every=1)
        for _ in range(3):
            bank.update()
        before = counts(bank)
        accelerator.value = float("nan")
        assert bank.update()
        accelerator.value = 1.0
        with pytest.raises(FloatingPointError, match=r"at step 4, in '0.weight'"):
            RAISING[read](bank)
        assert counts(bank) == before
        assert bank.num_updates == 3
        bank.weights("ema")
        assert bank.update()


def test_loading_a_state_discards_a_nan_sample() -> None:
    with Accelerator().running() as accelerator:
        bank = EMABank(net(torch.float32), RULES, every=1)
        bank.update()
        state = tree_map_only(Tensor, lambda t: torch.zeros(t.shape, dtype=t.dtype), bank.state_dict())
        accelerator.value = float("nan")
        bank.update()
        accelerator.value = 1.0
        bank.load_state_dict(state)
        assert bank.num_updates == 1
        assert bank.update()
