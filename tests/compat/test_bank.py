"""The banks of docs/migrating.md have the weights of the real library after every step."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import swa_utils

from emabank import EMA, EMABank, Uniform
from tests.compat.peers import Case, build_model, module_of, steps

DECAY = 0.8
LINES: dict[str, tuple[Case, Callable[[nn.Module], EMABank]]] = {
    "torch mean": (Case("torch", {}), lambda model: EMABank(model, [Uniform()], buffers="copy")),
    "torch ema": (
        Case("torch", {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(DECAY)}),
        lambda model: EMABank(model, [EMA(DECAY, warmup=None, start=1)], buffers="copy"),
    ),
    "timm": (Case("timm v3", {"decay": DECAY}), lambda model: EMABank(model, [EMA(DECAY, warmup=None, start=1)])),
    "timm warm-up": (
        Case("timm v3", {"decay": DECAY, "use_warmup": True}),
        lambda model: EMABank(model, [EMA(DECAY, warmup="power", start=1)]),
    ),
    "ema_pytorch": (
        Case("ema_pytorch", {"beta": DECAY, "update_after_step": 3, "update_every": 1}),
        lambda model: EMABank(model, [EMA(DECAY, warmup="power", start=4)]),
    ),
    "torch_ema": (
        Case("torch_ema", {"decay": DECAY}),
        lambda model: EMABank(model, [EMA(lambda step: min(DECAY, (1 + step) / (10 + step)))]),
    ),
    "diffusers": (
        Case("diffusers", {"decay": DECAY}),
        lambda model: EMABank(model, [EMA(lambda step: min(DECAY, (1 + step) / (10 + step)), start=1)]),
    ),
    "diffusers warm-up": (
        Case("diffusers", {"decay": DECAY, "use_ema_warmup": True}),
        lambda model: EMABank(model, [EMA(DECAY, warmup="power", start=1)]),
    ),
}


@pytest.mark.parametrize(("case", "make_bank"), LINES.values(), ids=LINES)
def test_a_bank_has_the_weights_of_the_real_library(case: Case, make_bank: Callable[[nn.Module], EMABank]):
    model = build_model("mlp")
    bank, peer = make_bank(model), case.make(model, peer=True)
    for step in steps(model, 40):
        bank.update()
        case.update(peer, model, step)
        weights = bank.weights(bank.names[0])
        for name, expected in floating_weights(peer, model).items():
            torch.testing.assert_close(weights[name], expected, rtol=1e-5, atol=1e-6)


def floating_weights(peer: Any, model: nn.Module) -> dict[str, Tensor]:
    """The peer's average by the model's names; parameters only, if the peer keeps a list."""
    if hasattr(peer, "shadow_params"):
        return dict(zip(dict(model.named_parameters()), peer.shadow_params, strict=True))
    return {name: tensor for name, tensor in module_of(peer).state_dict().items() if tensor.is_floating_point()}
