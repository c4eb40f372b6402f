"""batchnorm.py: an interrupt anywhere in a recalibration leaves the live model as it was."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import emabank
from emabank import EMABank, recalibrate_batchnorm

LIBRARY = (str(Path(emabank.__file__).parent), contextlib.__file__)


def interrupted_at(number: int, kind: str, action: Callable[[], Any]) -> bool:
    """Whether the action was interrupted: at this one of the lines or bytecodes that run in the library."""
    left = number

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(LIBRARY):
            return None
        frame.f_trace_opcodes = kind == "opcode"
        if event == kind:
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def snapshot(model: nn.Module) -> list[Any]:
    """Everything that a pass over the data touches: which tensors stand where, their values, modes, hooks, momenta."""
    found: list[Any] = [
        torch.is_grad_enabled(),
        torch.get_rng_state().tolist(),
    ]
    for module in model.modules():
        found += [module.training, getattr(module, "momentum", None)]
        found += [len(hooks) for name, hooks in vars(module).items() if name.endswith("_hooks")]
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            found.append((key, type(tensor), id(tensor), None if tensor is None else tensor.tolist()))
    return found


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
    before = snapshot(model)
    number = 0
    while interrupted_at(number, event, lambda: recalibrate_batchnorm(target, data)):
        assert snapshot(model) == before, f"{event} {number}"
        number += step
    assert number > 300
