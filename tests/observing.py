"""A short training run that a BestTracker observes, and what two of them must have in common to be equal."""

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from emabank import BestTracker, EMABank

BANK = EMABank(nn.Linear(2, 1), [0.5, 0.9])  # for what needs names only
NAMES = ("live", "ema-0.5", "ema-0.9")
BOTH: dict[str, Literal["max", "min"]] = {"accuracy": "max", "loss": "min"}


def numbers(accuracy: float, loss: float = 1.0) -> dict[str, float]:
    return {"accuracy": accuracy, "loss": loss}


class Run:
    """A training run of a few steps an epoch; every epoch has its own weights, live and averaged."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.bank = EMABank(self.model, [0.5, 0.9], every=1)
        self.tracker = BestTracker(self.bank, BOTH, **options)
        self.weights: dict[tuple[str, int], dict[str, Tensor]] = {}

    def epoch(self, epoch: int, metrics: dict[Any, dict[str, float]], **options: Any) -> None:
        generator = torch.Generator().manual_seed(epoch)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) / 10)
        self.bank.update()
        self.weights |= {(name, epoch): self.bank.weights(name) for name in NAMES}
        self.tracker.observe(epoch, metrics, **options)


assert_equal = partial(torch.testing.assert_close, rtol=0, atol=0)


def assert_same_state(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert str([{**a, "weights": 0}]) == str([{**b, "weights": 0}])  # as text, so that NaN equals NaN
    assert [(w["average"], w["epoch"]) for w in a["weights"]] == [(w["average"], w["epoch"]) for w in b["weights"]]
    for mine, other in zip(a["weights"], b["weights"], strict=True):
        assert_equal(mine["weights"], other["weights"])
