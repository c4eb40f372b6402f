"""posthoc.py: averages synthesized from snapshots, against averages kept live; and the files of snapshots."""

import copy
import math
import shutil
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from emabank import EMA, EMABank, PowerEMA, Uniform, posthoc
from emabank.posthoc import (
    LikeDecay,
    Mixture,
    Snapshots,
    estimate_movement,
    mixture,
    profile,
    snapshot_steps,
    synthesize,
    synthesize_many,
)
from tests.on_ranks import sharded
from tests.support.oracle import AVERAGES, states_equal
from tests.support.ranks import FSDP, run_on_ranks

WIDTHS = {"narrow": PowerEMA(0.05), "wide": PowerEMA(0.1)}
LIVE = {
    "short": EMA(half_life=8, warmup=None),
    "long": EMA(half_life=40, warmup=None),
    "warmed": EMA(0.97),
    "late": EMA(half_life=25, start=90),
    "uniform": Uniform(),
    "tail": Uniform(start=130),
    "power": PowerEMA(0.15),
}


class Training:
    """A small network on random data, with averages kept live beside the snapshots."""

    def __init__(
        self, folder: Path, *, every: int = 1, every_steps: int = 4, on_nonfinite: Any = "raise", **options: Any
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
        self.model.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.bank = EMABank(self.model, WIDTHS, every=every, on_nonfinite=on_nonfinite)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "short has|warmed has|long has|late has")
            self.live = EMABank(self.model, LIVE, every=every)
        self.folder, self.options = folder, {"every_steps": every_steps, **options}
        self.snapshots = Snapshots(self.bank, folder, **self.options)

    def train(self, steps: int) -> "Training":
        for _ in range(steps):
            generator = torch.Generator().manual_seed(self.bank.num_steps)
            inputs = torch.randn(8, 6, generator=generator)
            (self.model(inputs) - inputs[:, :2]).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.model.seen += 1
            self.live.update()
            self.bank.update()
            self.snapshots.update()
        return self

    def state(self) -> dict[str, Any]:
        return copy.deepcopy([part.state_dict() for part in (self.model, self.optimizer, self.bank)])

    def resume(self, state: list[Any]) -> "Training":
        for part, saved in zip((self.model, self.optimizer, self.bank), copy.deepcopy(state), strict=True):
            part.load_state_dict(saved)
        self.snapshots = Snapshots(self.bank, self.folder, **self.options)
        return self


def distance(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Relative to the norm of the expected weights."""
    keys = [key for key, tensor in expected.items() if tensor.is_floating_point()]
    error = math.sqrt(sum(float((actual[key].double() - expected[key].double()).square().sum()) for key in keys))
    return error / math.sqrt(sum(float(expected[key].double().square().sum()) for key in keys))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return Training(tmp_path_factory.mktemp("snapshots")).train(200)


def copy_snapshots(training: Training, folder: Path, gap: int) -> Path:
    """A folder with only the snapshots at multiples of `gap` steps."""
    folder.mkdir()
    for step in snapshot_steps(training.folder):
        if step % gap == 0:
            shutil.copy(training.folder / f"step-{step:09d}.pt", folder)
    return folder


# Against averages that were kept live --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LIVE)
def test_synthesis_equals_the_average_kept_live(trained: Training, name: str) -> None:
    synthesis = synthesize(trained.folder, LIVE[name], at_step=200)
    live = trained.live.weights(name)
    assert synthesis.error < 0.2
    assert math.fsum(synthesis.coefficients.values()) == pytest.approx(1.0, abs=1e-12)
    lag = distance(trained.live.weights("live"), live)
    assert distance(synthesis.weights, live) < (0.1 if name == "uniform" else 0.05) * lag + 1e-5
    assert list(synthesis.weights) == list(live)
    assert {key: value.dtype for key, value in synthesis.weights.items()} == {key: live[key].dtype for key in live}


@pytest.mark.parametrize("every", [1, 3, 16])
def test_synthesis_works_at_any_stopping_step(tmp_path: Path, every: int) -> None:
    training = Training(tmp_path, every=every, every_steps=max(4, every))
    for stop in (80, 121, 160):
        training.train(stop - training.bank.num_steps)
        training.snapshots.save()
        names = ("long", "warmed", "uniform")
        for name, synthesis in synthesize_many(tmp_path, {name: LIVE[name] for name in names}, at_step=stop).items():
            assert synthesis.step == stop
            assert distance(synthesis.weights, training.live.weights(name)) < 0.04, (name, stop, synthesis.error)
    assert synthesize(tmp_path, LIVE["long"]).step == 160


def test_the_reported_error_falls_with_the_measured_one(trained: Training, tmp_path: Path) -> None:
    live = trained.live.weights("short")
    reported, measured = [], []
    for gap in (40, 20, 8, 4):
        synthesis = synthesize(copy_snapshots(trained, tmp_path / str(gap), gap), LIVE["short"], at_step=200)
        reported.append(synthesis.error)
        measured.append(distance(synthesis.weights, live))
    assert reported == sorted(reported, reverse=True) and reported[0] > 10 * reported[-1]
    assert measured == sorted(measured, reverse=True) and measured[0] > 10 * measured[-1]
    shortest = EMA(half_life=1, warmup=None)  # shorter than the gap between snapshots
    assert synthesize(tmp_path / "40", shortest, at_step=200).error > 0.5


def test_values_too_large_for_half_precision_are_saved_unrounded(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    nn.init.constant_(model.bias, 1e6)
    Snapshots(EMABank(model, WIDTHS, every=1), tmp_path, every_steps=1, dtype=torch.float16)
    assert float(synthesize(tmp_path, EMA(0.9)).weights["bias"]) == 1e6


def test_many_snapshots_do_not_amplify_rounding(tmp_path: Path) -> None:
    training = Training(tmp_path, every_steps=1).train(150)
    names = ("short", "long", "tail")
    for name, synthesis in synthesize_many(tmp_path, {name: LIVE[name] for name in names}, at_step=150).items():
        assert len(synthesis.coefficients) == 2 * 151 - 2
        measured = distance(synthesis.weights, training.live.weights(name))
        assert measured < 2e-5
        assert synthesis.rounding < 1e-5 and synthesis.error < 0.01


def size_of_averages(folder: Path) -> int:
    averages = torch.load(folder / "step-000000200.pt", weights_only=True)["state"]["averages"].values()
    return sum(tensor.nbytes for average in averages for tensor in average["tensors"].values())


def test_half_precision_halves_the_files(tmp_path: Path, trained: Training) -> None:
    half = Training(tmp_path, dtype=torch.float16).train(200)
    synthesis = synthesize(tmp_path, LIVE["long"], at_step=200)
    assert distance(synthesis.weights, half.live.weights("long")) < 3e-3
    assert 1e-5 < synthesis.rounding < 3e-3
    assert synthesis.weights["0.weight"].dtype == torch.float32
    assert 2 * size_of_averages(tmp_path) == size_of_averages(trained.folder)


# Traps ---------------------------------------------------------------------------------------------------------------


def test_trap53_only_snapshots_up_to_the_step_are_used(trained: Training, tmp_path: Path) -> None:
    before = tmp_path / "before"
    shutil.copytree(trained.folder, before)
    for step in snapshot_steps(before):
        if step > 120:
            (before / f"step-{step:09d}.pt").unlink()
    full, part = (synthesize(folder, LIVE["long"], at_step=120) for folder in (trained.folder, before))
    assert max(step for step, _ in full.coefficients) == 120
    assert full.coefficients == synthesize_many(trained.folder, LIVE, at_step=120)["long"].coefficients
    by_number = synthesize(trained.folder, 0.9, at_step=123)
    assert by_number.coefficients == synthesize(trained.folder, EMA(0.9), at_step=123).coefficients
    assert int(by_number.weights["seen"]) == 120  # of the last snapshot used
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


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_step", [-1, 201, 10_000])
def test_a_step_without_snapshots_is_refused(trained: Training, at_step: int) -> None:
    with pytest.raises(ValueError, match=f"^at_step must be from 0 to 200, .* got {at_step}"):
        synthesize(trained.folder, EMA(0.9), at_step=at_step)


@pytest.mark.parametrize("at_step", [5.5, "5", True])
def test_a_step_that_is_no_whole_number_is_refused(trained: Training, at_step: Any) -> None:
    with pytest.raises(ValueError, match="^at_step must be a whole number"):
        synthesize(trained.folder, EMA(0.9), at_step=at_step)


def test_a_default_device_of_torch_changes_no_synthesis(trained: Training) -> None:
    expected = synthesize(trained.folder, EMA(half_life=8)).weights
    with torch.device("meta"):
        assert states_equal(synthesize(trained.folder, EMA(half_life=8)).weights, expected)


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    bank = EMABank(nn.Linear(2, 1), WIDTHS, every=1)
    for every_steps in (0, -3, 2.0, True):
        with pytest.raises(ValueError, match="^every_steps must"):
            Snapshots(bank, tmp_path, every_steps=every_steps)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="^dtype must .* got torch.int8"):
        Snapshots(bank, tmp_path, every_steps=1, dtype=torch.int8)
    for averages in ([EMA(0.9)], [PowerEMA(0.1)], {"one": PowerEMA(0.1), "same": PowerEMA(0.1)}):
        with pytest.raises(ValueError, match="^bank must have two power-function averages"):
            Snapshots(EMABank(nn.Linear(2, 1), averages, every=1), tmp_path, every_steps=1)


def test_no_snapshot_is_written_before_the_first_sample(tmp_path: Path) -> None:
    bank = EMABank(nn.Linear(2, 1), WIDTHS, every=16)
    snapshots = Snapshots(bank, tmp_path, every_steps=2)
    for _ in range(5):
        bank.update()
        assert not snapshots.update()
    with pytest.raises(RuntimeError, match="step 5"):
        snapshots.save()


def skip_a_sample(training: Training) -> None:
    state = copy.deepcopy(training.model.state_dict())
    with torch.no_grad():
        training.model[0].weight.fill_(math.nan)
    for _ in range(3):
        training.bank.update()
    training.model.load_state_dict(state)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda training: training.bank.flush(), "the bank was flushed between samples before step"),
        (lambda training: training.bank.reset(), "the average 'narrow' was reset at step 40"),
        (skip_a_sample, "the bank had skipped 1 samples for NaN or inf by step"),
    ],
)
def test_irregular_samples_warn_at_once_and_are_refused_afterwards(tmp_path: Path, spoil: Any, message: str) -> None:
    training = Training(tmp_path, every=3, on_nonfinite="skip")
    training.train(40)
    spoil(training)
    with pytest.warns(UserWarning, match=message):
        training.train(4)
    training.train(20)  # warns once
    assert synthesize(tmp_path, EMA(0.9), at_step=40).error < 1
    with pytest.raises(ValueError, match=message):
        synthesize(tmp_path, EMA(0.9))


@pytest.mark.parametrize("rule", ["0.9", None, True, 1.5, [0.9], 1j])
def test_an_invalid_rule_is_refused(trained: Training, rule: object) -> None:
    with pytest.raises(ValueError, match="must be a decay from 0 to 1|must be a number from 0 to 1"):
        synthesize(trained.folder, rule)


# Profiles -------------------------------------------------------------------------------------------------------------


ROUNDED = 6e-8


def weights_of_samples(rules: dict[str, EMA | Uniform | PowerEMA], steps: int, every: int) -> dict[str, torch.Tensor]:
    """Averages of weights that are the k-th unit vector at the k-th sample: the weight of each sample."""
    model = nn.Module()
    model.weight = nn.Parameter(torch.eye(1, steps // every + 1, dtype=torch.float64)[0])
    bank = EMABank(model, rules, every=every, dtype=torch.float64)
    for step in range(1, steps + 1):
        with torch.no_grad():
            model.weight.zero_()[step // every] = 1.0
        bank.update()
    return {name: bank.weights(name)["weight"] for name in rules}


@pytest.mark.filterwarnings("ignore:At the first step the weights are")
@pytest.mark.parametrize(("steps", "every"), [(40, 1), (41, 4), (64, 16), (33, 5)])
def test_a_profile_equals_the_weights_of_samples_in_a_bank(steps: int, every: int) -> None:
    more = {"still": EMA(1.0), "forgetful": EMA(per_update=0.0), "late": EMA(per_update=0.9, start=7)}
    rules = {**AVERAGES, **more, "tail": Uniform(start=12)}
    for name, expected in weights_of_samples(rules, steps, every).items():
        computed = profile(rules[name], steps, every=every)
        torch.testing.assert_close(computed, expected, rtol=1e-12, atol=1e-15, msg=f"{name}: {computed} {expected}")


def snapshot_profiles(steps: range) -> list[torch.Tensor]:
    return [profile(rule, step, every=1) for step in steps for rule in WIDTHS.values()]


def lengths(averages: list[torch.Tensor]) -> list[int]:
    return [len(weights) for weights in averages]


def mix(result: Mixture, averages: list[torch.Tensor], length: int) -> np.ndarray:
    total = np.zeros(length)
    for share, weights in zip(result.coefficients, averages, strict=True):
        total[: len(weights)] += share * weights.numpy()
    return total


def test_the_error_combines_distance_from_the_target_and_rounding() -> None:
    averages, target = snapshot_profiles(range(20, 201, 20)), profile(EMA(half_life=30), 200, every=1)
    result = mixture(averages.__getitem__, lengths(averages), target, [ROUNDED] * len(averages))
    off = np.linalg.norm(mix(result, averages, 201) - target.numpy())
    rounding = ROUNDED * np.linalg.norm(result.coefficients)
    assert result.rounding == pytest.approx(rounding)
    assert result.error == pytest.approx(
        math.hypot(off, rounding / posthoc.UNKNOWN.noise**0.5) / np.linalg.norm(target.numpy())
    )
    assert math.fsum(result.coefficients) == pytest.approx(1.0, abs=1e-12)


def expected_square(result: Mixture, averages: list[torch.Tensor], target: torch.Tensor, rounding: float) -> float:
    """The expected squared error, by definition, of independent noise and a walk with variance 1/k per sample."""
    off = mix(result, averages, len(target)) - target.numpy()
    walk = 1 / np.arange(1, len(target))
    movement = np.sum(np.cumsum(off)[:-1] ** 2 * walk / walk.sum())
    return posthoc.UNKNOWN.noise * np.sum(off**2) + movement + rounding**2 * np.sum(np.square(result.coefficients))


def test_no_other_mixture_with_sum_one_is_closer() -> None:
    averages, target = snapshot_profiles(range(20, 201, 20)), profile(EMA(half_life=30), 200, every=1)
    result = mixture(averages.__getitem__, lengths(averages), target, [ROUNDED] * len(averages))
    best = expected_square(result, averages, target, ROUNDED)
    generator = np.random.default_rng(0)
    for size in (1e-6, 1e-4, 1e-2):
        step = generator.normal(size=len(averages)) * size
        other = result._replace(coefficients=list(np.add(result.coefficients, step - step.mean())))
        assert expected_square(other, averages, target, ROUNDED) > best


@pytest.mark.parametrize(("noise", "walk"), [(0.3, 0.01), (0.01, 0.2), (1e-6, 1e-4)])
@pytest.mark.parametrize("rounding", [6e-8, 3e-4])
def test_noise_and_walk_of_a_run_are_estimated_from_its_snapshots(noise: float, walk: float, rounding: float) -> None:
    averages, generator = snapshot_profiles(range(20, 401, 20)), np.random.default_rng(0)
    variances = walk / np.arange(1, 401) / np.sum(1 / np.arange(1, 401))
    steps = generator.normal(size=(400, 2000)) * np.sqrt(variances)[:, None]
    path = np.concatenate([np.zeros((1, 2000)), steps.cumsum(0)]) + math.sqrt(noise) * generator.normal(
        size=(401, 2000)
    )
    elements = np.stack([weights.numpy() @ path[: len(weights)] for weights in averages])
    elements += rounding * generator.normal(size=elements.shape)
    result = estimate_movement(
        averages.__getitem__, lengths(averages), [rounding] * len(averages), torch.from_numpy(elements)
    )
    assert result == pytest.approx((noise, walk), rel=0.2)


def test_a_mixture_of_one_average() -> None:
    result = mixture([torch.tensor([0.5, 0.5])].__getitem__, [2], torch.tensor([0.0, 1.0]), [ROUNDED])
    assert result.coefficients == [1.0]
    assert result.error == pytest.approx(math.sqrt(0.5), rel=1e-6)


@pytest.mark.parametrize("rule", [EMA(half_life=25), EMA(half_life=3000), Uniform(start=15_000), PowerEMA(0.15)])
def test_a_fit_in_parts_is_almost_as_good_as_an_exact_one(rule: EMA | Uniform | PowerEMA, monkeypatch) -> None:
    averages, target = snapshot_profiles(range(500, 20_001, 500)), profile(rule, 20_000, every=1)
    roundings = [ROUNDED] * len(averages)
    in_parts = mixture(averages.__getitem__, lengths(averages), target, roundings)
    monkeypatch.setattr(posthoc, "_EXACT", 1_000_000)
    exact = mixture(averages.__getitem__, lengths(averages), target, roundings)
    squares = [expected_square(result, averages, target, ROUNDED) for result in (exact, in_parts)]
    assert squares[0] <= squares[1] * (1 + 1e-6) + 1e-15 and squares[1] <= 1.02 * squares[0]
    off = np.linalg.norm(mix(in_parts, averages, len(target)) - target.numpy()) / np.linalg.norm(target.numpy())
    assert in_parts.error == pytest.approx(off, rel=1e-2)


# Shaped like a learning-rate decay ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["linear", "cosine", "sqrt"])
@pytest.mark.parametrize("every", [1, 4])
def test_like_decay_matches_a_decayed_model_with_the_same_gradients(tmp_path: Path, shape: Any, every: int) -> None:
    """The updates do not depend on the weights, so the decayed branch is known exactly."""
    window, steps, generator = 60, 240, torch.Generator().manual_seed(0)
    factors = {
        "linear": lambda x: 1 - x,
        "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
        "sqrt": lambda x: 1 - x**0.5,
    }
    model = nn.Linear(30, 20, bias=False)
    bank = EMABank(model, WIDTHS, every=every)
    snapshots = Snapshots(bank, tmp_path, every_steps=4)
    branch = torch.zeros(0)
    for step in range(steps):
        update = 0.01 * torch.randn(20, 30, generator=generator)
        if step == steps - window:
            branch = model.weight.detach().double()
        with torch.no_grad():
            model.weight += update
        if step >= steps - window:
            branch = branch + factors[shape]((step - steps + window) / window) * update
        bank.update()
        snapshots.update()
    synthesis = synthesize(tmp_path, LikeDecay(shape, window=window))
    moved = float((model.weight.detach() - branch).norm())
    error = float((synthesis.weights["weight"] - branch).norm())
    assert error < 0.2 * moved
    controls = [
        synthesize(tmp_path, LikeDecay(shape, window=window, control=name)) for name in ("reversed", "scrambled")
    ]
    for control in controls if shape == "sqrt" else controls[1:]:  # a linear or cosine decay is its own reverse
        assert float((control.weights["weight"] - branch).norm()) > 2 * error


def test_invalid_arguments_of_like_decay_are_refused() -> None:
    for options, message in (
        ({"shape": "linear", "window": 0}, "^window must"),
        ({"shape": "steps", "window": 5}, "^shape must"),
        ({"shape": "linear", "window": 5, "control": "none"}, "^control must"),
    ):
        with pytest.raises(ValueError, match=message):
            LikeDecay(**options)


# Files ---------------------------------------------------------------------------------------------------------------


def test_infrequent_calls_write_the_snapshots_that_are_due(tmp_path: Path) -> None:
    bank = EMABank(nn.Linear(2, 1), WIDTHS, every=1)
    snapshots = Snapshots(bank, tmp_path, every_steps=10)
    for _ in range(5):
        for _ in range(7):
            bank.update()
        snapshots.update()
    assert snapshot_steps(tmp_path) == [0, 14, 21, 35]


def test_resuming_from_an_older_checkpoint_removes_later_snapshots(tmp_path: Path, trained: Training) -> None:
    training = Training(tmp_path).train(90)
    state = training.state()
    training.train(60)
    assert max(snapshot_steps(tmp_path)) == 148
    training.resume(state)
    assert max(snapshot_steps(tmp_path)) == 88
    training.train(110)
    assert snapshot_steps(tmp_path) == snapshot_steps(trained.folder) == list(range(0, 201, 4))
    (tmp_path / "step-000000200.pt").unlink()  # as if killed before writing it
    training.resume(training.state())
    resumed, whole = (synthesize(folder, LIVE["long"], at_step=200) for folder in (tmp_path, trained.folder))
    assert all(torch.equal(resumed.weights[key], whole.weights[key]) for key in whole.weights)


def test_a_folder_of_another_training_is_refused(tmp_path: Path) -> None:
    Training(tmp_path).train(8)
    with pytest.raises(ValueError, match="snapshots up to step 8, but the bank is at step 0"):
        Training(tmp_path)
    bank = EMABank(nn.Linear(2, 1), WIDTHS, every=2)
    for _ in range(9):
        bank.update()
    with pytest.raises(ValueError, match="step-000000008.pt has narrow, wide of a bank with every=1"):
        Snapshots(bank, tmp_path, every_steps=4)


def test_a_refused_folder_keeps_its_snapshots(tmp_path: Path) -> None:
    Training(tmp_path).train(40)
    kept = snapshot_steps(tmp_path)
    for widths, steps in ({"other": PowerEMA(0.05), "widths": PowerEMA(0.2)}, 20), (WIDTHS, 20), (WIDTHS, 1):
        bank = EMABank(nn.Linear(2, 1), widths, every=1)
        for _ in range(steps):
            bank.update()
        with pytest.raises(ValueError, match="use another folder"):
            Snapshots(bank, tmp_path, every_steps=4, run="another")
        assert snapshot_steps(tmp_path) == kept


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    Training(tmp_path).train(20)
    path = tmp_path / "step-000000012.pt"
    content = bytearray(path.read_bytes())
    averages = torch.load(path, weights_only=True)["state"]["averages"]
    content[content.index(averages["wide"]["tensors"]["0.weight"].numpy().tobytes())] ^= 1
    for damaged in (content, content[:-100]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="step-000000012.pt is damaged"):
            synthesize(tmp_path, EMA(0.9), at_step=20)
    assert synthesize(tmp_path, EMA(0.9), at_step=8).step == 8


def test_a_folder_with_another_run_id_is_refused(tmp_path: Path) -> None:
    training = Training(tmp_path, run="first").train(8)
    state = training.state()
    training.resume(state).train(8)
    training.options["run"] = "second"
    with pytest.raises(ValueError, match="^run must be 'first', .* got 'second'"):
        training.resume(state)


def test_a_snapshot_from_another_run_is_named(tmp_path: Path) -> None:
    for name in ("first", "second"):
        Training(tmp_path / name).train(8)
    shutil.copy(tmp_path / "second/step-000000004.pt", tmp_path / "first")
    with pytest.raises(ValueError, match="step-000000004.pt is of another run"):
        synthesize(tmp_path / "first", EMA(0.9))
    assert synthesize(tmp_path / "first", EMA(0.9), at_step=0).step == 0
    Training(tmp_path / "one", run="same").train(20)
    (tmp_path / "one/step-000000012.pt").rename(tmp_path / "one/step-000000013.pt")
    with pytest.raises(ValueError, match="step-000000013.pt is the snapshot of step 12"):
        synthesize(tmp_path / "one", EMA(0.9))
    bank = EMABank(nn.Linear(2, 1), WIDTHS, every=1)
    snapshots = Snapshots(bank, tmp_path / "two", every_steps=1, run="same")
    for _ in range(13):
        bank.update()
        snapshots.update()
    shutil.copy(tmp_path / "two/step-000000013.pt", tmp_path / "one")
    with pytest.raises(ValueError, match="step-000000013.pt has other tensors"):
        synthesize(tmp_path / "one", EMA(0.9))
    other = EMABank(nn.Linear(2, 1), [PowerEMA(0.1), PowerEMA(0.2)], every=1)
    Snapshots(other, tmp_path / "three", every_steps=1)
    shutil.copy(tmp_path / "three/step-000000000.pt", tmp_path / "two")
    with pytest.raises(ValueError, match="step-000000000.pt is of a bank with other averages"):
        synthesize(tmp_path / "two", EMA(0.9))


def test_at_most_two_snapshots_are_in_memory(trained: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    read, alive, counts = posthoc.read_state, [], []

    def read_and_count(path: Path, *, kind: str) -> dict[str, Any]:
        counts.append(sum(reference() is not None for reference in alive))
        state = read(path, kind=kind)
        alive.append(weakref.ref(state["averages"]["wide"]["tensors"]["0.weight"]))
        return state

    monkeypatch.setattr(posthoc, "read_state", read_and_count)
    synthesize(trained.folder, LIVE["long"], at_step=200)
    assert 51 <= len(counts) <= 51 + 24 and max(counts) <= 2


# Several processes ---------------------------------------------------------------------------------------------------


@FSDP
def test_snapshots_of_a_sharded_model_are_unsharded_and_written_once(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    (tmp_path / "store").mkdir()
    written = run_on_ranks(sharded.write_snapshots, folder, folder=tmp_path / "store")
    assert written[1] == []  # only the first process has written
    alone = sharded.write_snapshots_alone(tmp_path / "alone")
    for at_step in (4, 6):
        sharded_weights, weights = (synthesize(path, EMA(0.8), at_step=at_step).weights for path in (folder, alone))
        torch.testing.assert_close(sharded_weights, weights, rtol=1e-5, atol=1e-6)
