"""What samples weigh, against a bank that is shown one unit vector after the other; and mixtures of that."""

import math

import numpy as np
import pytest
import torch
from reference import AVERAGES
from torch import nn

from emabank import EMA, EMABank, PowerEMA, Uniform, posthoc
from emabank.posthoc import Mixture, mixture, profile

ROUNDED = 6e-8


def shown_unit_vectors(rules: dict[str, EMA | Uniform | PowerEMA], steps: int, every: int) -> dict[str, torch.Tensor]:
    """The averages of weights that are the k-th unit vector when the k-th sample is taken: what each sample weighs."""
    model = nn.Module()
    model.weight = nn.Parameter(torch.eye(1, steps // every + 1, dtype=torch.float64)[0])
    bank = EMABank(model, rules, every=every, dtype=torch.float64)
    for step in range(1, steps + 1):
        with torch.no_grad():
            model.weight.zero_()[step // every] = 1.0
        bank.update()
    return {name: bank.weights(name)["weight"] for name in rules}


@pytest.mark.filterwarnings("ignore:At the first step the weights are")  # they jump, from one unit vector to the next
@pytest.mark.parametrize(("steps", "every"), [(40, 1), (41, 4), (64, 16), (33, 5)])
def test_a_profile_is_what_samples_weigh_in_a_bank(steps: int, every: int) -> None:
    more = {"still": EMA(1.0), "forgetful": EMA(per_update=0.0), "late": EMA(per_update=0.9, start=7)}
    rules = {**AVERAGES, **more, "tail": Uniform(start=12)}
    for name, weighed in shown_unit_vectors(rules, steps, every).items():
        found = profile(rules[name], steps, every=every)
        torch.testing.assert_close(found, weighed, rtol=1e-12, atol=1e-15, msg=f"{name}: {found} {weighed}")


@pytest.mark.parametrize("rule", AVERAGES.values(), ids=AVERAGES)
def test_a_profile_adds_up_to_one(rule: EMA | Uniform | PowerEMA) -> None:
    assert float(profile(rule, 5000, every=3).sum()) == pytest.approx(1.0, abs=1e-12)


def snapshots(steps: range, *, every: int = 1, widths: tuple[float, ...] = (0.05, 0.1)) -> list[torch.Tensor]:
    return [profile(PowerEMA(width), step, every=every) for step in steps for width in widths]


def mixed(made: Mixture, averages: list[torch.Tensor], length: int) -> np.ndarray:
    total = np.zeros(length)
    for share, each in zip(made.coefficients, averages, strict=True):
        total[: len(each)] += share * each.numpy()
    return total


def test_the_error_is_the_distance_of_the_weights_and_their_rounding() -> None:
    averages, target = snapshots(range(20, 201, 20)), profile(EMA(half_life=30), 200, every=1)
    made = mixture(averages, target, [ROUNDED] * len(averages))
    off = np.linalg.norm(mixed(made, averages, 201) - target.numpy())
    rounding = ROUNDED * np.linalg.norm(made.coefficients)
    assert made.rounding == pytest.approx(rounding)
    assert made.error == pytest.approx(math.hypot(off, rounding / posthoc.SPREAD) / np.linalg.norm(target.numpy()))
    assert math.fsum(made.coefficients) == pytest.approx(1.0, abs=1e-12)


def test_no_other_mixture_that_adds_up_to_one_is_nearer() -> None:
    averages, target = snapshots(range(20, 201, 20)), profile(EMA(half_life=30), 200, every=1)
    noise = ROUNDED / posthoc.SPREAD
    made = mixture(averages, target, [ROUNDED] * len(averages))
    best = np.linalg.norm(mixed(made, averages, 201) - target.numpy()) ** 2 + noise**2 * np.sum(
        np.square(made.coefficients)
    )
    generator = np.random.default_rng(0)
    for size in (1e-6, 1e-4, 1e-2):
        step = generator.normal(size=len(averages)) * size
        other = made._replace(coefficients=list(np.add(made.coefficients, step - step.mean())))
        off = np.linalg.norm(mixed(other, averages, 201) - target.numpy()) ** 2
        assert off + noise**2 * np.sum(np.square(other.coefficients)) > best


def test_what_is_among_the_averages_is_found_again() -> None:
    averages = snapshots(range(20, 201, 20))
    made = mixture(averages, averages[-1], [ROUNDED] * len(averages))
    assert made.coefficients[-1] == pytest.approx(1.0, abs=1e-3)
    assert made.error < 1e-4


def test_one_average_is_all_there_is() -> None:
    made = mixture([torch.tensor([0.5, 0.5])], torch.tensor([0.0, 1.0]), [ROUNDED])
    assert made.coefficients == [1.0]
    assert made.error == pytest.approx(math.sqrt(0.5), rel=1e-6)


def test_with_more_snapshots_the_error_falls() -> None:
    target = profile(EMA(half_life=4), 400, every=1)
    errors = []
    for apart in (80, 40, 20, 10, 5):
        averages = snapshots(range(apart, 401, apart))
        errors.append(mixture(averages, target, [ROUNDED] * len(averages)).error)
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.3 and errors[-1] < 0.02


@pytest.mark.parametrize("rounded", [ROUNDED, 3e-4], ids=["float32", "float16"])
def test_with_very_many_snapshots_coefficients_are_as_large_as_rounding_allows(rounded: float) -> None:
    averages, target = snapshots(range(2, 401, 2)), profile(EMA(half_life=1, warmup=None), 400, every=1)
    careful = mixture(averages, target, [rounded] * len(averages))
    careless = mixture(averages, target, [1e-15] * len(averages))
    # What the careless mixture would be off by, with what is really rounded.
    multiplied = rounded * float(np.linalg.norm(careless.coefficients))
    off = np.linalg.norm(mixed(careless, averages, 401) - target.numpy())
    assert careful.rounding < multiplied
    assert careful.error < math.hypot(off, multiplied / posthoc.SPREAD) / np.linalg.norm(target.numpy())
    if rounded > ROUNDED:
        assert np.abs(careful.coefficients).max() < 0.1 * np.abs(careless.coefficients).max()
        assert careful.error < 1 < multiplied / posthoc.SPREAD


@pytest.mark.parametrize("rule", [EMA(half_life=25), EMA(half_life=3000), Uniform(start=15_000), PowerEMA(0.15)])
def test_long_trainings_are_fitted_as_well_in_parts(rule: EMA | Uniform | PowerEMA, monkeypatch) -> None:
    averages, target = snapshots(range(500, 20_001, 500)), profile(rule, 20_000, every=1)
    in_parts = mixture(averages, target, [ROUNDED] * len(averages)).error
    monkeypatch.setattr(posthoc, "_EXACT", 1_000_000)
    exact = mixture(averages, target, [ROUNDED] * len(averages)).error
    assert exact <= in_parts * (1 + 1e-9) + 1e-12
    assert in_parts <= 1.05 * exact + 1e-4
