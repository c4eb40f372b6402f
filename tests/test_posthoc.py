"""Averages that are put together afterwards, against averages that were kept live in the very same training."""

import copy
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from snapshotting import LIVE, SHORTEST, WIDTHS, Training, distance, thinned
from snapshotting import trained as trained
from torch import nn

from emabank import EMA, EMABank, PowerEMA, Uniform, posthoc
from emabank.posthoc import Snapshots, snapshot_steps, synthesize, synthesize_many

# Against averages that were kept live --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LIVE)
def test_it_is_the_average_that_was_kept_live(trained: Training, name: str) -> None:
    synthesis = synthesize(trained.folder, LIVE[name], at_step=200)
    live = trained.live.weights(name)
    assert synthesis.error < 0.2
    # The live weights are by this much apart from the average; what is left of it has to be a small part.
    apart = distance(trained.live.weights("live"), live)
    assert distance(synthesis.weights, live) < (0.1 if name == "uniform" else 0.05) * apart + 1e-5
    assert list(synthesis.weights) == list(live)
    assert {key: value.dtype for key, value in synthesis.weights.items()} == {key: live[key].dtype for key in live}


@pytest.mark.parametrize("every", [1, 3, 16])
def test_any_stopping_step_will_do(tmp_path: Path, every: int) -> None:
    training = Training(tmp_path, every=every, every_steps=max(4, every))
    for stop in (80, 121, 160):
        training.go(stop - training.bank.num_steps)
        training.snapshots.save()
        names = ("long", "warmed", "uniform")
        for name, synthesis in synthesize_many(tmp_path, {name: LIVE[name] for name in names}, at_step=stop).items():
            assert synthesis.step == stop
            assert distance(synthesis.weights, training.live.weights(name)) < 0.04, (name, stop, synthesis.error)
    assert synthesize(tmp_path, LIVE["long"]).step == 160


def test_the_reported_error_falls_with_the_measured_one(trained: Training, tmp_path: Path) -> None:
    live = trained.live.weights("short")
    reported, measured = [], []
    for apart in (40, 20, 8, 4):
        synthesis = synthesize(thinned(trained, tmp_path / str(apart), apart), LIVE["short"], at_step=200)
        reported.append(synthesis.error)
        measured.append(distance(synthesis.weights, live))
    assert reported == sorted(reported, reverse=True) and reported[0] > 10 * reported[-1]
    assert measured == sorted(measured, reverse=True) and measured[0] > 10 * measured[-1]


def test_a_window_shorter_than_the_distance_of_snapshots_has_a_large_error(trained: Training, tmp_path: Path) -> None:
    synthesis = synthesize(thinned(trained, tmp_path / "few", 40), EMA(half_life=1, warmup=None), at_step=200)
    assert synthesis.error > 0.5


def test_several_at_once_are_the_same_as_one_by_one(trained: Training) -> None:
    several = synthesize_many(trained.folder, LIVE, at_step=120)
    for name in ("short", "tail"):
        one = synthesize(trained.folder, LIVE[name], at_step=120)
        assert one.coefficients == several[name].coefficients
        assert all(torch.equal(one.weights[key], several[name].weights[key]) for key in one.weights)


def test_what_is_not_averaged_comes_from_the_last_snapshot_used(trained: Training) -> None:
    assert int(synthesize(trained.folder, EMA(0.9), at_step=123).weights["seen"]) == 120


def test_rounding_is_not_multiplied_by_very_many_snapshots(tmp_path: Path) -> None:
    training = Training(tmp_path, every_steps=1).go(150)
    names = ("short", "long", "tail")
    for name, synthesis in synthesize_many(tmp_path, {name: LIVE[name] for name in names}, at_step=150).items():
        assert len(synthesis.coefficients) == 2 * 151 - 2
        measured = distance(synthesis.weights, training.live.weights(name))
        assert measured < 2e-5
        assert synthesis.rounding < 1e-5 and synthesis.error < 0.01


def test_control_without_care_for_rounding_it_would_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path, dtype=torch.float16).go(200)
    careful = synthesize(tmp_path, SHORTEST, at_step=200)
    monkeypatch.setattr(posthoc, "_rounding", lambda *_, **__: 1e-15)
    careless = synthesize(tmp_path, SHORTEST, at_step=200)
    live = training.live.weights("shortest")
    assert distance(careless.weights, live) > 1.1 * distance(careful.weights, live)


def size_of_averages(folder: Path) -> int:
    averages = torch.load(folder / "step-000000200.pt", weights_only=True)["state"]["averages"].values()
    return sum(tensor.nbytes for average in averages for tensor in average["tensors"].values())


def test_half_precision_halves_the_files(tmp_path: Path, trained: Training) -> None:
    half = Training(tmp_path, dtype=torch.float16).go(200)
    synthesis = synthesize(tmp_path, LIVE["long"], at_step=200)
    assert distance(synthesis.weights, half.live.weights("long")) < 3e-3
    assert 1e-5 < synthesis.rounding < 3e-3
    assert synthesis.weights["0.weight"].dtype == torch.float32
    assert 2 * size_of_averages(tmp_path) == size_of_averages(trained.folder)


def test_what_half_precision_cannot_hold_is_kept_as_it_is(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    bank = EMABank(model, WIDTHS, every=1)
    with torch.no_grad():
        model.bias.fill_(1e6)
    bank.reset()
    Snapshots(bank, tmp_path, every_steps=1, dtype=torch.float16)
    assert float(synthesize(tmp_path, EMA(0.9)).weights["bias"]) == 1e6


# Traps ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_step", [40, 123, 200])
def test_trap53_coefficients_add_up_to_one(trained: Training, at_step: int) -> None:
    for synthesis in synthesize_many(trained.folder, LIVE, at_step=at_step).values():
        assert math.fsum(synthesis.coefficients.values()) == pytest.approx(1.0, abs=1e-12)


def test_trap53_only_snapshots_up_to_the_step_are_used(trained: Training, tmp_path: Path) -> None:
    before = tmp_path / "before"
    shutil.copytree(trained.folder, before)
    for step in snapshot_steps(before):
        if step > 120:
            (before / f"step-{step:09d}.pt").unlink()
    full, part = (synthesize(folder, LIVE["long"], at_step=120) for folder in (trained.folder, before))
    assert max(step for step, _ in full.coefficients) == 120
    assert all(torch.equal(full.weights[key], part.weights[key]) for key in part.weights)


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_trap53_constants_are_reproduced_exactly(tmp_path: Path, dtype: torch.dtype | None) -> None:
    for kind in (torch.float32, torch.float64):
        model = nn.Linear(7, 3).to(kind)
        bank = EMABank(model, WIDTHS, every=1, dtype=kind)
        folder = tmp_path / str(kind)
        snapshots = Snapshots(bank, folder, every_steps=2, dtype=dtype)
        for _ in range(60):
            bank.update()
            snapshots.update()
        weight = model.weight.detach() if dtype is None else model.weight.detach().to(dtype)
        for rule in (EMA(half_life=3), EMA(0.99), Uniform(start=31), PowerEMA(0.2)):
            assert torch.equal(synthesize(folder, rule, at_step=53).weights["weight"].to(weight.dtype), weight)


# What is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_step", [-1, 201, 10_000])
def test_a_step_without_snapshots_is_refused(trained: Training, at_step: int) -> None:
    with pytest.raises(ValueError, match=f"^at_step must be from 0 to 200, .* got {at_step}"):
        synthesize(trained.folder, EMA(0.9), at_step=at_step)


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    bank = EMABank(nn.Linear(2, 1), WIDTHS, every=1)
    for wrong in (0, -3, 2.0, True):
        with pytest.raises(ValueError, match="^every_steps must"):
            Snapshots(bank, tmp_path, every_steps=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="^dtype must .* got torch.int8"):
        Snapshots(bank, tmp_path, every_steps=1, dtype=torch.int8)
    for averages in ([EMA(0.9)], [PowerEMA(0.1)], {"one": PowerEMA(0.1), "same": PowerEMA(0.1)}):
        with pytest.raises(ValueError, match="^bank must have two power-function averages"):
            Snapshots(EMABank(nn.Linear(2, 1), averages, every=1), tmp_path, every_steps=1)


def test_before_the_first_sample_there_is_nothing_to_save(tmp_path: Path) -> None:
    bank = EMABank(nn.Linear(2, 1), WIDTHS, every=16)
    snapshots = Snapshots(bank, tmp_path, every_steps=2)
    for _ in range(5):
        bank.update()
        assert not snapshots.update()
    with pytest.raises(RuntimeError, match="step 5"):
        snapshots.save()


def flushed(training: Training) -> None:
    training.bank.flush()


def reset(training: Training) -> None:
    training.bank.reset()


def skipped(training: Training) -> None:
    kept = copy.deepcopy(training.model.state_dict())
    with torch.no_grad():
        training.model[0].weight.fill_(math.nan)
    for _ in range(3):
        training.bank.update()
    training.model.load_state_dict(kept)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (flushed, "the bank was flushed between samples before step"),
        (reset, "the average 'narrow' was reset at step 40"),
        (skipped, "the bank had skipped 1 samples for NaN or inf by step"),
    ],
)
def test_irregular_samples_are_said_at_once_and_refused_afterwards(tmp_path: Path, spoil: Any, why: str) -> None:
    training = Training(tmp_path, every=3)
    training.bank._on_nonfinite = "skip"
    training.go(40)
    spoil(training)
    with pytest.warns(UserWarning, match=why):
        training.go(4)
    training.go(20)  # warns once
    assert synthesize(tmp_path, EMA(0.9), at_step=40).error < 1
    with pytest.raises(ValueError, match=why):
        synthesize(tmp_path, EMA(0.9))


def test_the_example_of_the_docs_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    page = (Path(__file__).parents[1] / "docs/posthoc.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(block, {})
    errors = [float(word) for word in capsys.readouterr().out.split()]
    assert len(errors) == 3 and max(errors) < 0.3


def test_a_number_is_the_decay_of_an_ema(trained: Training) -> None:
    one, other = (synthesize(trained.folder, rule, at_step=120) for rule in (0.9, EMA(0.9)))
    assert one.coefficients == other.coefficients


@pytest.mark.parametrize("rule", ["0.9", None, True, 1.5, [0.9], 1j])
def test_what_is_no_rule_is_refused(trained: Training, rule: object) -> None:
    with pytest.raises(ValueError, match="must be a decay from 0 to 1|must be a number from 0 to 1"):
        synthesize(trained.folder, rule)
