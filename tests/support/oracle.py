"""The slow oracle: averages in float64, one step at a time, written from the definitions and not from the library.

An oracle keeps every sample and computes the average from the whole list each time.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from emabank import EMA, PowerEMA, Ramp, Uniform

Weights = dict[str, Tensor]


def exact(tensors: Mapping[str, Tensor]) -> Weights:
    """Copies in float64 (complex128 where complex)."""
    return {k: t.detach().to(torch.complex128 if t.is_complex() else torch.float64).clone() for k, t in tensors.items()}


def live_weights(model: nn.Module, *, statistics: bool = True) -> Weights:
    """The tensors that a bank averages by default, by name: floating parameters and batch-norm statistics."""
    tensors = {k: p for k, p in model.named_parameters() if p.is_floating_point() or p.is_complex()}
    if statistics:
        tensors |= {
            k: b
            for k, b in model.named_buffers()
            if k.rpartition(".")[2] in ("running_mean", "running_var") and b.is_floating_point()
        }
    return exact(tensors)


class Oracle:
    """One average: give it the live weights after every optimizer step."""

    def __init__(self, initial: Weights, every: int, start: int = 0) -> None:
        self.every, self.start, self.step = every, start, 0
        self.initial, self.initial_step = initial, 0
        self.samples: list[tuple[int, Weights]] = []

    def after_step(self, live: Weights) -> None:
        self.step += 1
        if self.step % self.every == 0:
            self.take(live)

    def take(self, live: Weights) -> None:
        if self.step <= self.start:
            self.initial, self.initial_step = live, self.step
        elif not self.samples or self.samples[-1][0] != self.step:
            self.samples.append((self.step, live))

    def reset(self, live: Weights) -> None:
        self.initial, self.initial_step, self.samples = live, self.step, []
        self.start = max(self.step, self.start)

    def coefficients(self) -> list[float]:
        """The weight of the initial weights and of each sample in the average now."""
        raise NotImplementedError

    def value(self) -> Weights:
        weights = self.coefficients()
        assert abs(sum(weights) - 1.0) < 1e-9, "the weights of an average add up to 1"
        points = [self.initial, *(sample for _, sample in self.samples)]
        return {k: sum(w * point[k] for w, point in zip(weights, points, strict=True)) for k in self.initial}


class EMAOracle(Oracle):
    """Σ (1 - αₖ) Π α over the later samples; `decay_over(steps since start, update number from 0, elapsed)` is α."""

    def __init__(self, initial: Weights, every: int, decay_over: "DecayOver", start: int = 0) -> None:
        super().__init__(initial, every, start)
        self.decay_over = decay_over

    def coefficients(self) -> list[float]:
        steps = [self.initial_step, *(step for step, _ in self.samples)]
        decays = [
            self.decay_over(now - self.start, number, now - before)
            for number, (before, now) in enumerate(itertools.pairwise(steps))
        ]
        weights, remaining = [], 1.0
        for decay in reversed(decays):
            weights.append(remaining * (1.0 - decay))
            remaining *= decay
        return [remaining, *reversed(weights)]


class UniformOracle(Oracle):
    """The mean of the samples; the initial weights are not among them."""

    def coefficients(self) -> list[float]:
        n = len(self.samples)
        return [0.0, *([1.0 / n] * n)] if n else [1.0]


class PowerOracle(Oracle):
    """∫ t^γ over each sample's period, as a share of the whole (EDM2, the continuous power-function profile)."""

    def __init__(self, initial: Weights, every: int, gamma: float) -> None:
        super().__init__(initial, every)
        self.gamma = gamma

    def coefficients(self) -> list[float]:
        if not self.samples:
            return [1.0]
        steps = [0, *(step - self.start for step, _ in self.samples)]
        shares = [(step / steps[-1]) ** (self.gamma + 1) for step in steps]
        return [0.0, *(after - before for before, after in itertools.pairwise(shares))]


DecayOver = Callable[[int, int, int], float]


def constant(decay: float, *, warmup: str | None = None, every: int = 16) -> DecayOver:
    """A decay per step, capped by a warm-up: over 16 steps, over a period of `every`, or over one step."""

    def decay_over(steps: int, number: int, elapsed: int) -> float:
        caps = {
            None: 1.0,
            "steps": (steps / (steps + 9)) ** (elapsed / 16),
            "updates": ((number + 1) / (number + 10)) ** (elapsed / every),
            "power": (1 - (1 + steps) ** (-2 / 3)) ** elapsed,
        }
        return min(decay**elapsed, caps[warmup])

    return decay_over


def states_equal(a: Any, b: Any) -> bool:
    """Nested states of the same types and values, tensors bit for bit; NaN equals NaN."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and (a.dtype, a.shape) == (b.dtype, b.shape) and bits(a).equal(bits(b))
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(states_equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(states_equal, a, b))
    return type(a) is type(b) and repr(a) == repr(b)


def bits(tensor: Tensor) -> Tensor:
    # A clone, because `contiguous` keeps the odd strides of a tensor with one element.
    return tensor.detach().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


assert_equal = partial(torch.testing.assert_close, rtol=0, atol=0)


def ema(first: Tensor, samples: Iterable[Tensor], decay: float) -> Tensor:
    """An exponential moving average in float64, without a warm-up."""
    average = first.double()
    for sample in samples:
        average = decay * average + (1 - decay) * sample.double()
    return average


def assert_close(got: dict[str, Tensor], want: dict[str, Tensor], *, rtol: float = 3e-6) -> None:
    """Equal up to float32's rounding, relative to the largest value of the tensor."""
    for name, value in want.items():
        scale = float(value.abs().max()) if value.numel() else 1.0
        torch.testing.assert_close(got[name].to(value.dtype), value, rtol=0, atol=rtol * max(scale, 1e-30), msg=name)


def rising(step: int) -> float:
    """A user's own schedule."""
    return 1.0 - 1.0 / (step + 3)


# One of each rule, and its oracle.
AVERAGES = {
    "plain": EMA(per_update=0.9, warmup=None),
    "paper": EMA(per_update=0.998),
    "updates": EMA(per_update=0.95, warmup="updates"),
    "per-step": EMA(0.99),
    "timm": EMA(0.995, warmup="power"),
    "half-life": EMA(half_life=67.5, warmup=None),
    "late": EMA(per_update=0.8, warmup=None, start=7),
    "own": EMA(rising),
    "ramp": Ramp(0.99, 0.999, steps=15, shape="linear"),
    "uniform": Uniform(),
    "tail": Uniform(start=9),
    "power": PowerEMA(0.15),
}


def oracles(model: nn.Module, every: int) -> dict[str, Oracle]:
    first = live_weights(model)
    gamma = 3.5578687748994646  # solves (γ + 1) / ((γ + 2)² (γ + 3)) = 0.15², by numpy.roots
    return {
        "plain": EMAOracle(first, every, constant(0.9 ** (1 / every))),
        "paper": EMAOracle(first, every, constant(0.998 ** (1 / every), warmup="steps")),
        "updates": EMAOracle(first, every, constant(0.95 ** (1 / every), warmup="updates", every=every)),
        "per-step": EMAOracle(first, every, constant(0.99, warmup="steps")),
        "timm": EMAOracle(first, every, constant(0.995, warmup="power")),
        "half-life": EMAOracle(first, every, constant(0.5 ** (1 / 67.5))),
        "late": EMAOracle(first, every, constant(0.8 ** (1 / every)), start=7),
        "own": EMAOracle(first, every, lambda steps, _, elapsed: ((steps + 2) / (steps + 3)) ** elapsed),
        "ramp": EMAOracle(first, every, lambda t, _, elapsed: (0.99 + 0.009 * min(1, (t - 1) / 15)) ** elapsed),
        "uniform": UniformOracle(first, every),
        "tail": UniformOracle(first, every, start=9),
        "power": PowerOracle(first, every, gamma),
    }
