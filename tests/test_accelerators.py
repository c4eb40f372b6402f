"""No float64 on an accelerator, which may not have it: the meta device plays one, and every operation is looked at."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from emabank import EMABank, _model, bank, recalibrate_batchnorm


class Accelerator(TorchDispatchMode):
    """Meta tensors as those of a device without float64; what is fetched from them is 1 everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = list(_tensors((args, kwargs)))
        if any(tensor.is_meta for tensor in inputs):
            if func is torch.ops.aten._local_scalar_dense.default:
                return 1.0
            if func is torch.ops.aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
                return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_float64_from_the_first_update_to_recomputed_statistics(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (bank, _model):
        monkeypatch.setattr(module, "check_materialized", lambda _: None)
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
