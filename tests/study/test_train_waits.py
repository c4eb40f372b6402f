"""On an accelerator, stood in for by the meta device, no training step makes the host wait for the device."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from emabank import _model, bank
from emabank.study.run_job import network_of
from emabank.study.train import Interrupted, Training
from tests.study.small_runs import config, digits, parts_of

STEPS = 4  # of 5 in an epoch: measuring at its end needs real numbers


class Waits(TorchDispatchMode):
    """Records every read from the device and every copy between host and device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_device = any(tensor.is_meta for tensor in inputs)
        self.operations += on_device
        if on_device and func is torch.ops.aten._local_scalar_dense.default:
            self.seen.append("read")
            return 0.0
        target = kwargs.get("device")
        if on_device and target is not None and torch.device(target).type == "cpu":
            self.seen.append("to host")
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        from_host = any(tensor.is_cpu and tensor.dim() for tensor in inputs)
        if from_host and (on_device or (target is not None and torch.device(target).type == "meta")):
            self.seen.append("to device")
        return func(*args, **kwargs)


@pytest.mark.parametrize(("every", "waits"), [(16, []), (2, ["to host"] * (STEPS // 2))])
def test_training_waits_only_for_the_finite_check_of_each_averaging_update(
    monkeypatch: pytest.MonkeyPatch, every: int, waits: list[str]
):
    """Averages skip non-finite weights, which costs one read per update, every 16 steps in the paper."""
    for module in (bank, _model):
        monkeypatch.setattr(module, "check_materialized", lambda _: None)
    run = config(averages={"every": every}, hardware={"device": "cuda", "fused": False})
    calls = 0

    def should_stop() -> bool:
        nonlocal calls
        calls += 1
        if calls == 1:  # at its first step the bank checks whether weights were loaded since its creation
            mode.seen.clear()
        return calls == STEPS

    with torch.random.fork_rng(devices=[]), Waits() as mode:
        training = Training(run, parts_of(run), network_of(run, digits()[0]), device=torch.device("meta"))
        with pytest.raises(Interrupted):
            training.run(should_stop=should_stop)
    assert training.steps == STEPS
    assert training.bank.num_updates == STEPS // every
    assert mode.operations > 100 * STEPS, "the model runs on the device"
    assert mode.seen == waits
