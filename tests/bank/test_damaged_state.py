"""load_state_dict of a damaged state: refused in a sentence, and nothing has changed."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from emabank import EMA, BestTracker, EMABank, PowerEMA, Uniform, recalibrate_batchnorm
from tests.support.models import train
from tests.support.oracle import states_equal

PLAIN = [-1, 1.5, float("nan"), float("inf"), 10**400, 1j, "text", b"", True, [], {}, set(), object()]
TENSORS = {
    "scalar": lambda t: torch.tensor(1.0),
    "other shape": lambda t: torch.zeros(*t.shape, 2, dtype=t.dtype),
    "fewer": lambda t: t.flatten()[:-1],
    "integer": lambda t: torch.ones(t.shape, dtype=torch.long),
    "bool": lambda t: torch.ones(t.shape, dtype=torch.bool),
    "other kind": lambda t: t.real if t.is_complex() else t.to(torch.complex64),
    "nan": lambda t: torch.full_like(t, float("nan")),
    "too large": lambda t: torch.full(t.shape, 1e300, dtype=torch.complex128 if t.is_complex() else torch.float64),
    "meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "list": lambda t: t.tolist(),
}


class Waves(nn.Module):
    """Batch norm, a complex weight and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 4), nn.BatchNorm1d(4)
        self.wave = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x)) * self.wave.abs()


def built(steps: int) -> tuple[nn.Module, EMABank]:
    torch.manual_seed(0)
    model = Waves()
    bank = EMABank(model, [EMA(0.93), EMA(0.99, start=3), Uniform(), PowerEMA(0.15)], every=2)
    train(model, steps, bank.update)
    recalibrate_batchnorm(bank, [torch.randn(8, 6)], averages=["live", "ema-0.93"])
    return model, bank


def places(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of a nested state."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from places(inner, (*path, key))


def changed(state: dict[str, Any], path: tuple[Any, ...], change: Callable[[dict[str, Any], Any], None]) -> Any:
    """The state with a change to the dict that holds the last key of the path."""
    if len(path) > 1:
        return {**state, path[0]: changed(state[path[0]], path[1:], change)}
    copied = dict(state)
    change(copied, path[0])
    return copied


def put(value: Any) -> Callable[[dict[str, Any], str], None]:
    return lambda inner, key: inner.__setitem__(key, value)


def at(state: dict[str, Any], path: tuple[str, ...]) -> Any:
    for key in path:
        state = state[key]
    return state


def damages(state: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The state with one fault, and what it is."""
    for path in places(state):
        value, where = at(state, path), "/".join(path)
        is_default = "rule" in path and value in (None, "steps", 0)
        is_optional = path[0] == "recomputed" and len(path) % 2 == 0  # an average, or a tensor of one
        if not (is_default or is_optional):
            yield f"{where} removed", changed(state, path, lambda inner, key: inner.pop(key))
        yield f"{where} renamed", changed(state, path, lambda inner, key: inner.update({f"{key}!": inner.pop(key)}))
        for bad in [*PLAIN, None, torch.ones(2), torch.tensor(3)]:
            is_unknown_decay = bad is None and (value is None or path[-1] == "decay")
            if not (is_unknown_decay or (isinstance(bad, dict) and path[0] == "recomputed")):
                yield f"{where} is {bad!r:.30}", changed(state, path, put(bad))
        if isinstance(value, torch.Tensor):
            for name, make in TENSORS.items():
                if not (name == "too large" and path[0] == "recomputed"):  # statistics are kept as they are
                    yield f"{where} is {name}", changed(state, path, put(make(value)))
        if isinstance(value, dict):
            yield f"{where} has more", changed(state, (*path, "more"), put(torch.ones(1)))
            yield f"{where} has a number for a key", changed(state, (*path, 7), put(1))
    yield "more", {**state, "more": 1}
    for bad in PLAIN:
        yield f"it is {bad!r:.30}", bad


def contradictions(state: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The state with one value that the others, or the bank, rule out."""
    steps = state["num_steps"]
    for path, value in {
        ("every",): 3,
        ("num_updates",): steps + 1,
        ("averages", "ema-0.93", "rule", "warmup"): "updates",
        ("averages", "uniform", "last"): steps + 1,
        ("averages", "uniform", "origin"): steps,
        ("averages", "uniform", "samples"): steps + 1,
        ("averages", "ema-0.99", "begin"): 0,
        ("recomputed", "live", "step"): steps + 1,
    }.items():
        yield f"{'/'.join(path)} is {value}", changed(state, path, put(value))


def test_trap41_a_state_with_any_one_fault_is_refused_and_changes_nothing() -> None:
    _, donor = built(9)
    model, bank = built(6)
    before = bank.state_dict()
    damaged = [*damages(donor.state_dict()), *contradictions(donor.state_dict())]
    assert len(damaged) > 1000
    for name, state in damaged:
        with pytest.raises(ValueError, match=r"^\S[^\n]{20,}$"):  # one sentence
            bank.load_state_dict(state)
            pytest.fail(f"{name} was loaded")
        assert states_equal(bank.state_dict(), before), name
    other, twin = built(6)
    train(model, 4, bank.update, seed=3)
    train(other, 4, twin.update, seed=3)
    assert states_equal(bank.state_dict(), twin.state_dict())


def observed(epoch: int) -> BestTracker:
    tracker = BestTracker(built(6)[1], {"loss": "min"}, snapshots="each")
    tracker.observe(epoch, {name: {"loss": 0.5} for name in ("live", "ema-0.93")})
    return tracker


def damages_of_tracker(state: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in state:
        yield f"{key} removed", {inner: value for inner, value in state.items() if inner != key}
        for bad in [*PLAIN, None, torch.ones(2)]:
            if not (key in ("recomputed", "per_sample") and isinstance(bad, list)):
                yield f"{key} is {bad!r:.30}", {**state, key: bad}
    first, *others = state["weights"]
    for key in first:
        for bad in [*PLAIN, None, torch.ones(2)]:
            yield f"weights/{key} is {bad!r:.30}", {**state, "weights": [{**first, key: bad}, *others]}
    for key, value in first["weights"].items():
        fewer = {inner: other for inner, other in first["weights"].items() if inner != key}
        changed = [fewer, {**fewer, f"{key}!": value}, {**first["weights"], "more": value}]
        if key == "linear.weight":
            changed += [
                {**fewer, key: make(value)} for name, make in TENSORS.items() if name not in ("nan", "too large")
            ]
        for number, weights in enumerate(changed):
            yield f"{key} {number}", {**state, "weights": [{**first, "weights": weights}, *others]}
    for bad in PLAIN:
        yield f"it is {bad!r:.30}", bad


def test_a_trackers_state_with_any_one_fault_is_refused_and_changes_nothing() -> None:
    tracker, state = observed(1), observed(2).state_dict()
    before = tracker.state_dict()
    for name, damaged in damages_of_tracker(state):
        with pytest.raises(ValueError, match=r"^\S[^\n]{20,}$"):
            tracker.load_state_dict(damaged)
            pytest.fail(f"{name} was loaded")
        assert states_equal(tracker.state_dict(), before), name
    tracker.load_state_dict(state)
    assert states_equal(tracker.state_dict(), state)
