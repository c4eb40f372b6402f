"""load_state_dict refuses a damaged state with a clear error and changes nothing."""

from collections.abc import Callable, Iterator
from functools import reduce
from operator import getitem
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


def train_bank(steps: int) -> tuple[nn.Module, EMABank]:
    torch.manual_seed(0)
    model = Waves()
    bank = EMABank(model, [EMA(0.93), EMA(0.99, start=3), Uniform(), PowerEMA(0.15)], every=2)
    train(model, steps, bank.update)
    recalibrate_batchnorm(bank, [torch.randn(8, 6)], averages=["live", "ema-0.93"])
    return model, bank


def paths_in(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of a nested state."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from paths_in(inner, (*path, key))


def with_change(state: dict[str, Any], path: tuple[Any, ...], change: Callable[[dict[str, Any], Any], None]) -> Any:
    """The state with a change to the dict that holds the last key of the path."""
    if len(path) > 1:
        return {**state, path[0]: with_change(state[path[0]], path[1:], change)}
    copied = dict(state)
    change(copied, path[0])
    return copied


def set_to(value: Any) -> Callable[[dict[str, Any], str], None]:
    return lambda inner, key: inner.__setitem__(key, value)


def damages(state: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The description of a fault, and the state with it."""
    for path in paths_in(state):
        value, where = reduce(getitem, path, state), "/".join(path)
        is_default = "rule" in path and value in (None, "steps", 0)
        is_optional = path[0] == "recomputed" and len(path) % 2 == 0  # an average, or a tensor of one
        if not (is_default or is_optional):
            yield f"{where} removed", with_change(state, path, lambda inner, key: inner.pop(key))
        yield f"{where} renamed", with_change(state, path, lambda inner, key: inner.update({f"{key}!": inner.pop(key)}))
        for bad in [*PLAIN, None, torch.ones(2), torch.tensor(3)]:
            is_unknown_decay = bad is None and (value is None or path[-1] == "decay")
            if not (is_unknown_decay or (isinstance(bad, dict) and path[0] == "recomputed")):
                yield f"{where} is {bad!r:.30}", with_change(state, path, set_to(bad))
        if isinstance(value, torch.Tensor):
            for name, make in TENSORS.items():
                if not (name == "too large" and path[0] == "recomputed"):  # statistics keep their dtype
                    yield f"{where} is {name}", with_change(state, path, set_to(make(value)))
        if isinstance(value, dict):
            yield f"{where} has more", with_change(state, (*path, "more"), set_to(torch.ones(1)))
            yield f"{where} has a number for a key", with_change(state, (*path, 7), set_to(1))
    yield "more", {**state, "more": 1}
    for bad in PLAIN:
        yield f"the state is {bad!r:.30}", bad


def contradictions(state: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The state with one value that contradicts its other values or the bank."""
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
        yield f"{'/'.join(path)} is {value}", with_change(state, path, set_to(value))


def test_trap41_a_state_with_any_one_fault_is_refused_and_changes_nothing() -> None:
    _, donor = train_bank(9)
    model, bank = train_bank(6)
    before = bank.state_dict()
    damaged = [*damages(donor.state_dict()), *contradictions(donor.state_dict())]
    assert len(damaged) > 1000
    for name, state in damaged:
        with pytest.raises(ValueError, match=r"^\S[^\n]{20,}$"):  # a single line
            bank.load_state_dict(state)
            pytest.fail(f"{name} was loaded")
        assert states_equal(bank.state_dict(), before), name
    twin_model, twin = train_bank(6)
    train(model, 4, bank.update, seed=3)
    train(twin_model, 4, twin.update, seed=3)
    assert states_equal(bank.state_dict(), twin.state_dict())


def make_tracker(epoch: int) -> BestTracker:
    tracker = BestTracker(train_bank(6)[1], {"loss": "min"}, snapshots="each")
    names = ("live", "ema-0.93")
    tracker.observe(epoch, {name: {"loss": 0.5} for name in names}, per_sample={name: [0.25, 0.75] for name in names})
    return tracker


def tracker_damages(state: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in state:
        yield f"{key} removed", {inner: value for inner, value in state.items() if inner != key}
        for bad in [*PLAIN, None, torch.ones(2)]:
            if not (key in ("recomputed", "per_sample") and isinstance(bad, list)):
                yield f"{key} is {bad!r:.30}", {**state, key: bad}
    first, *rest = state["weights"]
    for key in first:
        for bad in [*PLAIN, None, torch.ones(2)]:
            yield f"weights/{key} is {bad!r:.30}", {**state, "weights": [{**first, key: bad}, *rest]}
    for key, value in first["weights"].items():
        fewer = {inner: other for inner, other in first["weights"].items() if inner != key}
        changed = [fewer, {**fewer, f"{key}!": value}, {**first["weights"], "more": value}]
        if key == "linear.weight":
            changed += [
                {**fewer, key: make(value)} for name, make in TENSORS.items() if name not in ("nan", "too large")
            ]
        for number, weights in enumerate(changed):
            yield f"{key} {number}", {**state, "weights": [{**first, "weights": weights}, *rest]}
    for bad in PLAIN:
        yield f"the state is {bad!r:.30}", bad
    values, *more = state["per_sample"]
    for change in (
        {"values": [0.5]},
        {"values": torch.zeros(2)},
        {"values": torch.zeros(1, 2)},
        {"values": torch.zeros(2, dtype=torch.int64)},
        {"values": torch.zeros(2).to_sparse()},
        {"epoch": 9},
        {"criterion": []},
    ):
        yield f"per_sample {change}", {**state, "per_sample": [{**values, **change}, *more]}
    row, *rows = state["history"]
    for history in ([row[:2]], [[*row[:4], 1]], [row, [0, *row[1:]]]):
        yield f"history {history}", {**state, "history": [*history, *rows]}
    yield "an unknown average", {**state, "per_sample": [], "history": [[row[0], "ema-0.7", *row[2:]], *rows]}
    yield "newer", {**state, "version": 2}
    yield "other criteria", {**state, "criteria": {"accuracy": "max"}}
    yield "other snapshots", {**state, "snapshots": "best"}


def test_trap41_a_trackers_state_with_any_one_fault_is_refused_and_changes_nothing() -> None:
    tracker, state = make_tracker(1), make_tracker(2).state_dict()
    before = tracker.state_dict()
    for name, damaged in tracker_damages(state):
        with pytest.raises(ValueError, match=r"^\S[^\n]{20,}$"):
            tracker.load_state_dict(damaged)
            pytest.fail(f"{name} was loaded")
        assert states_equal(tracker.state_dict(), before), name
    tracker.load_state_dict(state)
    assert states_equal(tracker.state_dict(), state)
