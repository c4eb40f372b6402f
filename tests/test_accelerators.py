"""What a bank does on an accelerator. The meta device plays one, and every operation is looked at.

No float64, which it may not have, and no update that makes the host wait for it.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from emabank import EMA, EMABank, PowerEMA, Uniform, _model, bank, recalibrate_batchnorm


class Accelerator(TorchDispatchMode):
    """Meta tensors as those of a device without float64; `value` is what is fetched from them, everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.waits: list[str] = []
        self.in_flight: list[Tensor] = []  # results of copies that do not block: to use one is to wait for it
        self.value = 1.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = list(_tensors((args, kwargs)))
        # Copies between host and accelerator block unless non_blocking says otherwise, from the host even then: its
        # memory is pageable here.
        if len({tensor.device for tensor in inputs}) > 1 and any(tensor.dim() for tensor in inputs if tensor.is_cpu):
            self.waits.append(str(func))
        if any(tensor is fetched for tensor in inputs for fetched in self.in_flight):
            self.waits.append(str(func))
            self.in_flight.clear()
        if any(tensor.is_meta for tensor in inputs):
            if func is torch.ops.aten._local_scalar_dense.default:
                self.waits.append(str(func))
                return self.value
            if func is torch.ops.aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
                fetched = torch.full(args[0].shape, self.value, dtype=kwargs.get("dtype") or args[0].dtype)
                if kwargs.get("non_blocking"):
                    self.in_flight.append(fetched)
                else:
                    self.waits.append(str(func))
                return fetched
        elif kwargs.get("device") == torch.device("meta") and inputs:
            self.waits.append(str(func))
        output = func(*args, **kwargs)
        if any(tensor.is_meta for tensor in _tensors(output)):
            self.operations += 1
            wide = [t for t in (*inputs, *_tensors(output)) if t.dtype in (torch.float64, torch.complex128)]
            assert not wide, f"{func} with {wide}"
        return output


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def net(dtype: torch.dtype) -> nn.Module:
    layers = nn.Sequential(
        nn.Conv2d(2, 30, 3), nn.BatchNorm2d(30), nn.Flatten(), nn.Linear(270, 300), nn.BatchNorm1d(300)
    )
    return layers.to("meta", dtype)


@pytest.fixture(autouse=True)
def _meta_tensors_pass_for_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bank, _model):
        monkeypatch.setattr(module, "check_materialized", lambda _: None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_float64_from_the_first_update_to_recomputed_statistics(dtype: torch.dtype) -> None:
    model = net(dtype)
    with Accelerator() as accelerator:
        averages = EMABank(model, [0.9, 0.99], every=1)
        assert averages.update()
        assert averages.update()
        averages.weights(0.9)
        averages.call(0.9, torch.ones(17, 2, 5, 5, dtype=dtype, device="meta"))
        with averages.applied(0.9):
            pass
        averages.module(0.99)
        batches = [torch.ones(17, 2, 5, 5, dtype=dtype), torch.ones(1, 2, 5, 5, dtype=dtype)]
        recalibrate_batchnorm(averages, batches)
        saved = tree_map_only(Tensor, lambda t: torch.zeros(t.shape, dtype=t.dtype), averages.state_dict())
        averages.load_state_dict(saved)
        with averages.applied(0.9, batchnorm="recomputed"):
            pass
        recalibrate_batchnorm(model, batches)
    assert accelerator.operations > 100


RULES = {"ema": EMA(0.9), "settled": EMA(0.9, warmup=None), "uniform": Uniform(), "power": PowerEMA(0.1)}


@pytest.mark.parametrize("policy", ["raise", "ignore"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_does_not_make_the_host_wait(policy: str, dtype: torch.dtype) -> None:
    with Accelerator() as accelerator:
        averages = EMABank(net(dtype), RULES, every=1, on_nonfinite=policy)
        assert averages.update()  # the first one also looks for weights that were loaded since
        accelerator.waits.clear()
        for _ in range(3):
            accelerator.in_flight.clear()  # by the next update all copies of the last one have arrived
            assert averages.update()
        assert accelerator.waits == []
        averages.weights("ema")
        assert accelerator.waits  # it would have been noticed


def test_skip_is_exact_and_waits_once() -> None:
    with Accelerator() as accelerator:
        averages = EMABank(net(torch.float32), RULES, every=1, on_nonfinite="skip")
        averages.update()
        accelerator.waits.clear()
        accelerator.value = float("nan")
        assert not averages.update()
        assert averages.num_skipped == 1
        assert len(accelerator.waits) <= 1


READS = {
    "update": lambda averages: averages.update(),
    "weights": lambda averages: averages.weights("ema"),
    "applied": lambda averages: averages.applied("ema").__enter__(),
    "state_dict": lambda averages: averages.state_dict(),
    "reset": lambda averages: averages.reset(),
    "deepcopy": copy.deepcopy,
}


def counts(averages: EMABank) -> dict[str, object]:
    return {name: {**saved, "tensors": None} for name, saved in averages.state_dict()["averages"].items()}


@pytest.mark.parametrize("read", READS)
def test_the_error_comes_with_the_next_update_or_read_and_the_bad_sample_is_not_counted(read: str) -> None:
    with Accelerator() as accelerator:
        averages = EMABank(net(torch.float32), RULES, every=1)
        for _ in range(3):
            averages.update()
        before = counts(averages)
        accelerator.value = float("nan")
        assert averages.update()
        accelerator.value = 1.0
        with pytest.raises(FloatingPointError, match=r"at step 4, in '0.weight'"):
            READS[read](averages)
        assert counts(averages) == before
        assert averages.num_updates == 3
        averages.weights("ema")
        assert averages.update()


def test_a_loaded_state_takes_the_place_of_a_bad_sample() -> None:
    with Accelerator() as accelerator:
        averages = EMABank(net(torch.float32), RULES, every=1)
        averages.update()
        state = tree_map_only(Tensor, lambda t: torch.zeros(t.shape, dtype=t.dtype), averages.state_dict())
        accelerator.value = float("nan")
        averages.update()
        accelerator.value = 1.0
        averages.load_state_dict(state)
        assert averages.num_updates == 1
        assert averages.update()
