"""batchnorm.py: an interrupt anywhere in a recalibration leaves the live model as it was."""

import copy
from typing import Any

import pytest
import torch
from interrupting import interrupted_everywhere
from torch import Tensor, nn

from emabank import EMABank, recalibrate_batchnorm


def snapshot(model: nn.Module) -> list[Any]:
    """Everything that a pass over the data touches: which tensors stand where, their values, modes, hooks, momenta."""
    facts: list[Any] = [
        torch.is_grad_enabled(),
        torch.get_rng_state().tolist(),
    ]
    for module in model.modules():
        facts += [module.training, getattr(module, "momentum", None)]
        facts += [len(hooks) for name, hooks in vars(module).items() if name.endswith("_hooks")]
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            facts.append((key, type(tensor), id(tensor), None if tensor is None else tensor.tolist()))
    return facts


class Small(nn.Module):
    """A tied weight, dropout, and a buffer that each forward pass replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.norm, self.drop = nn.BatchNorm1d(2, momentum=0.3), nn.Dropout()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return self.drop(self.norm(self.second(self.first(x))))


def target_of(kind: str) -> EMABank | nn.Module:
    torch.manual_seed(0)
    model = Small()
    model.drop.eval()
    if kind == "module":
        return model
    bank = EMABank(model, [0.5], every=1)
    bank.update()
    return bank


@pytest.mark.parametrize(
    ("kind", "event", "step"),
    [("bank", "line", 1), ("bank", "opcode", 37), ("module", "line", 1)],  # every bytecode takes minutes
)
def test_trap30_an_interrupt_anywhere_leaves_the_live_model_as_it_was(kind: str, event: str, step: int) -> None:
    target, data = target_of(kind), [torch.randn(4, 2), torch.randn(3, 2)]
    model = target if isinstance(target, nn.Module) else target.model
    done, old = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    recalibrate_batchnorm(done, data)
    before, places = snapshot(model), 0
    for place in interrupted_everywhere(lambda: recalibrate_batchnorm(target, data), event, step):
        if str(model.state_dict()) == str(done.state_dict()):  # only the return was left
            model.load_state_dict(old)
        assert snapshot(model) == before, place
        places += 1
    assert places > 300
