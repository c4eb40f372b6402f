"""Intervals against scipy, rules at their edges, means over settings by hand, and the false positive rate."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from emabank.study.report.claims import (
    EQUAL,
    ClaimSpec,
    Interval,
    Sample,
    Statistic,
    above,
    below,
    conclude,
    evaluate,
    interval,
    judge,
    within,
)
from emabank.study.report.results import Results
from emabank.study.runs.manifest import Manifest, SettingRuns
from emabank.study.studies.scales import MAIN
from tests.study.report.example_results import make_results, make_setting

numbers = st.floats(-1e3, 1e3).map(lambda value: round(value, 3))
VGG = "cifar100-vgg16"


# Intervals and rules --------------------------------------------------------------------------------------------------


@given(st.lists(numbers, min_size=2, max_size=21))
def test_the_interval_matches_scipy(values):
    found = interval(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    if np.ptp(values) > 0:
        half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
        assert (found.high - found.low) / 2 == pytest.approx(half, rel=1e-4)


def test_the_interval_of_many_seeds_is_slightly_too_wide():
    values = np.random.default_rng(0).normal(size=60)
    found = interval(list(values))
    half = stats.t.ppf(0.975, 59) * stats.sem(values)
    assert half < (found.high - found.low) / 2 < 1.07 * half


def test_equal_values_have_an_interval_of_zero_width():
    assert interval([0.1, 0.1, 0.1]) == Interval(0.1, 0.1, 0.1)  # their computed mean is 0.10000000000000002
    assert judge(interval([0.1, 0.1, 0.1]), above()) == "reproduced"
    assert judge(interval([0.0, 0.0, 0.0]), above()) == "inconclusive"
    assert judge(interval([0.0, 0.0, 0.0]), within()) == "reproduced"


def test_the_error_of_means_over_pairs_matches_the_jackknife():
    """By definition: the mean over all pairs without each seed in turn."""
    random = np.random.default_rng(1)
    pairs = np.triu(random.random((6, 6)), 1)
    pairs += pairs.T
    of_seed = pairs.sum(1) / 5
    without = [np.delete(np.delete(pairs, seed, 0), seed, 1).sum() / 20 for seed in range(6)]
    error = np.sqrt(5 / 6 * np.sum((np.array(without) - np.mean(without)) ** 2))
    found = interval(list(of_seed), of_pairs=True)
    assert (found.high - found.low) / 2 == pytest.approx(2.5706 * error)
    assert interval([1.0, 1.0], of_pairs=True) == Interval(1.0, None, None), "two seeds have only one pair"


@pytest.mark.parametrize(
    ("low", "high", "rule", "verdict"),
    [
        (0.1, 2.0, above(), "reproduced"),
        (0.0, 2.0, above(), "inconclusive"),
        (-2.0, 0.0, above(), "inconclusive"),
        (-2.0, -0.1, above(), "not reproduced"),
        (-2.0, -0.1, below(), "reproduced"),
        (-1.0, 1.0, below(), "inconclusive"),
        (0.1, 1.0, below(), "not reproduced"),
        (-0.9, 0.9, within(), "reproduced"),
        (0.5, 0.9, within(), "reproduced"),
        (0.5, 1.0, within(), "inconclusive"),
        (-3.0, 3.0, within(), "inconclusive"),
        (1.1, 3.0, within(), "not reproduced"),
        (-3.0, -1.1, within(), "not reproduced"),
        (-9.0, 0.9, below(EQUAL), "reproduced"),
        (0.5, 1.5, below(EQUAL), "inconclusive"),
        (1.1, 1.5, below(EQUAL), "not reproduced"),
        (76.0, 80.0, above(75), "reproduced"),
        (60.0, 70.0, above(75), "not reproduced"),
    ],
)
def test_the_whole_interval_must_satisfy_the_rule(low, high, rule, verdict):
    assert judge(Interval((low + high) / 2, low, high), rule) == verdict


@pytest.mark.parametrize("of_pairs", [False, True])
def test_false_positive_rate_is_one_in_forty_per_side(of_pairs):
    """Ten seeds without an effect; the worst case of pairs, in which each seed shifts all of its pairs."""
    random = np.random.default_rng(0)
    verdicts = {"above": 0, "below": 0}
    for _ in range(2_000):
        seeds = random.normal(size=10)
        values = [seed + (seeds.sum() - seed) / 9 for seed in seeds] if of_pairs else list(seeds)
        for side, rule in (("above", above()), ("below", below())):
            verdicts[side] += judge(interval(values, of_pairs=of_pairs), rule) == "reproduced"
    # 2.5% are 50, and three standard deviations of a binomial count are 21.
    assert all(50 - 21 <= count <= 50 + 21 for count in verdicts.values())


# One primary statistic ------------------------------------------------------------------------------------------------


def spec(*statistics: Statistic, **more) -> ClaimSpec:
    fields = {"number": "16", "title": "EMA is better", "studies": ("generalization",), "pairs": (MAIN, VGG)}
    return ClaimSpec(statistics=statistics or (Statistic("accuracy", "gain", above(), lambda setting: []),),
                     **{**fields, **more})  # fmt: skip


def sample(pair: str, *values: float | None, scale: str = "demo", **more) -> Sample:
    """Values of seeds 10, 11, ..."""
    return Sample(dict(enumerate(values, 10)), setting=f"stands for {pair}", scale=scale, pair=pair, **more)


def claim_of(*samples: Sample, losses: list[Sample] | None = None, **more):
    statistics = (Statistic("accuracy", "gain", above(), lambda setting: []),
                  Statistic("loss", "loss", below(), lambda setting: []))  # fmt: skip
    return conclude(spec(*statistics, **more), {"accuracy": samples, "loss": losses or []}, Results())


def test_the_primary_statistic_is_the_mean_over_settings_with_an_interval_over_seeds():
    claim = claim_of(sample(MAIN, 1.0, 2.0, 3.0), sample(VGG, 3.0, 2.0, 7.0))
    assert claim.primary.by_seed == {10: 2.0, 11: 2.0, 12: 5.0}
    # Mean 3, standard deviation sqrt(3); 4.3027 from a table.
    assert claim.primary.mean == 3.0
    assert (claim.primary.low, claim.primary.high) == (pytest.approx(3 - 4.3027), pytest.approx(3 + 4.3027))
    assert (claim.primary.role, claim.primary.n, claim.primary.seeds_for) == ("primary", 3, 3)
    assert claim.verdict == claim.primary.verdict == "inconclusive"
    assert [(finding.role, finding.setting) for finding in claim.findings[1:]] == [
        ("secondary", f"stands for {MAIN}"), ("secondary", f"stands for {VGG}")
    ]  # fmt: skip


def test_a_single_setting_is_listed_once():
    assert [finding.role for finding in claim_of(sample(MAIN, 1.0, 1.1)).findings] == ["primary"]


def test_settings_that_were_not_run_are_named():
    assert claim_of(sample(MAIN, 1.0, 1.1)).primary.missing == ("CIFAR-100, VGG-16",)
    assert claim_of(sample(MAIN, 1.0), sample(VGG, 1.1)).primary.missing == ()


@pytest.mark.parametrize("lost", [None, float("nan"), float("inf")])
def test_a_seed_that_lacks_a_setting_is_skipped_and_named(lost):
    claim = claim_of(sample(MAIN, 1.0, 2.0, 3.0, 4.0), sample(VGG, 1.0, lost, 3.0))
    assert claim.primary.by_seed == {10: 1.0, 12: 3.0}
    assert claim.primary.skipped == (11, 13)
    of_setting = claim.findings[1]
    assert (of_setting.n, of_setting.skipped) == (4, ())


def test_seeds_for_counts_the_seeds_that_satisfy_the_rule():
    assert claim_of(sample(MAIN, 1.0, -1.0, 0.0, 2.0)).primary.seeds_for == 2


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((1.0, 1.1, 1.2), "reproduced"), ((-1.0, -1.1, -1.2), "not reproduced"), ((1.0, -1.0, 0.5), "inconclusive"),
     ((1.0,), "too few runs"), ((None, None), "too few runs")],
)  # fmt: skip
def test_only_the_primary_statistic_decides(values, verdict):
    for losses in ([], [sample(MAIN, 9.0, 9.1)], [sample(MAIN, -9.0, -9.1)]):
        assert claim_of(sample(MAIN, *values), losses=losses).verdict == verdict


def test_a_contrary_secondary_finding_is_an_exception_to_a_reproduced_claim():
    losses = [sample(MAIN, 1.0, 1.1), sample(VGG, -1.0, -1.1), sample(MAIN, 5.0, 5.1, scale="small")]
    claim = claim_of(sample(MAIN, 1.0, 1.1), sample(VGG, 9.0, 9.1), losses=losses)
    assert claim.verdict == "reproduced"
    assert [(finding.key, finding.setting, finding.mean) for finding in claim.exceptions] == [
        ("loss", f"stands for {MAIN}", pytest.approx(1.05))
    ]
    one_setting = claim_of(sample(MAIN, 9.0, 9.1), sample(VGG, -1.0, -1.1))
    assert [finding.setting for finding in one_setting.exceptions] == [f"stands for {VGG}"]
    assert not claim_of(sample(MAIN, -1.0, -1.1), losses=losses).exceptions, "the claim is not reproduced"


def test_the_larger_scale_decides_and_the_smaller_is_listed():
    claim = claim_of(sample(MAIN, 1.0, 1.1), sample(MAIN, -1.0, -1.1, scale="small"))
    assert [(finding.scale, finding.verdict) for finding in claim.findings] == [
        ("small", "not reproduced"), ("demo", "reproduced"),
    ]  # fmt: skip


def test_rounding_errors_do_not_widen_the_interval():
    claim = claim_of(sample(MAIN, 0.1 + 0.2, 0.3, 0.3))
    assert claim.primary.low == claim.primary.high == 0.3


# Settings of a claim --------------------------------------------------------------------------------------------------


EVERYWHERE = Statistic("accuracy", "gain", above(), lambda setting: [Sample({0: 1.0, 1: 1.1})])


def test_only_settings_of_the_claim_are_used():
    settings = [
        make_setting(MAIN),
        make_setting("cifar10n-resnet34"),
        make_setting(VGG, scale="paper"),
        make_setting(MAIN, scale="paper"),
    ]
    assert [finding.setting for finding in evaluate(spec(EVERYWHERE), make_results(*settings)).findings] == [
        "mean of 2 settings", settings[0].title, settings[2].title, settings[3].title,
    ]  # fmt: skip
    at_scale = evaluate(spec(EVERYWHERE, scale="paper"), make_results(*settings))
    assert {finding.scale for finding in at_scale.findings} == {"paper"}


def test_of_two_settings_for_a_pair_the_claims_own_study_decides_which():
    one, other = make_setting(MAIN), replace(make_setting(MAIN), protocol="protocol-more-seeds")
    studies = [
        Manifest(study=study, scale="demo", command="", state="done",
                 pairs=(SettingRuns(pair=MAIN, title="", protocol=setting.protocol),))
        for study, setting in (("dynamics", one), ("generalization", other))
    ]  # fmt: skip
    used: list[str] = []
    statistic = replace(EVERYWHERE, sample=lambda setting: used.append(setting.protocol) or [Sample({0: 1.0})])
    claim = evaluate(spec(statistic), Results(settings=[one, other], studies=studies))
    assert (used, claim.primary.setting) == (["protocol-more-seeds"], other.title)


def test_a_seed_without_the_statistic_is_named():
    claim = evaluate(spec(EVERYWHERE, pairs=(MAIN,)), make_results(make_setting()))
    assert (list(claim.primary.by_seed), claim.primary.skipped) == ([0, 1], (2,))


@pytest.mark.parametrize(
    ("state", "reason", "status"),
    [("running", "", "is not done yet"), ("failed", "", "failed"), ("failed", "disk full", "failed: disk full"),
     ("done", "", "is done, but has no runs with this measure")],
)  # fmt: skip
def test_a_claim_without_runs_names_the_command_and_the_state_of_the_study(state, reason, status):
    study = Manifest(study="generalization", scale="demo", command="", state=state, reason=reason)
    claim = evaluate(spec(), Results(studies=[study, replace(study, study="dynamics")]))
    assert (claim.verdict, claim.primary.n, claim.primary.seeds_for) == ("not run", 0, 0)
    assert claim.primary.notes == ("emabank run generalization", f"generalization (demo) {status}")
    assert evaluate(spec(scale="paper"), Results()).primary.notes == ("emabank run generalization --scale paper",)
