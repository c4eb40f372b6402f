"""The t-interval against scipy, the rules at their edges, and one verdict of all findings by a strict rule."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from emabank.study.report.claims import (
    EQUAL,
    REFERENCE,
    ClaimSpec,
    Finding,
    Interval,
    Sample,
    Statistic,
    above,
    below,
    evaluate,
    finding_of,
    findings_of,
    interval,
    judge,
    no_gain,
    overall,
    t_quantile,
    within,
)
from emabank.study.report.results import Results, Study
from tests.study.report.shapes import results, setting

numbers = st.floats(-1e3, 1e3).map(lambda value: round(value, 3))


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 29, 30, 99, 1000])
@pytest.mark.parametrize("probability", [0.5, 0.6, 0.9, 0.975, 0.9999])
def test_quantiles_are_those_of_scipy(probability, freedom):
    assert t_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-9, abs=1e-12)


@given(st.lists(numbers, min_size=2, max_size=12))
def test_the_interval_is_that_of_scipy(values):
    found = interval(values)
    spread = stats.sem(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    if np.ptp(values) > 0:
        low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=spread)
        assert (found.low, found.high) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))


@given(st.lists(st.tuples(numbers, numbers), min_size=3, max_size=8))
def test_zero_is_excluded_exactly_where_a_paired_t_test_has_p_below_five_percent(pairs):
    one, other = np.array(pairs).T
    if np.ptp(one - other) < 1e-6:
        return
    p = stats.ttest_rel(one, other).pvalue
    found = interval(list(one - other))
    if abs(p - 0.05) > 1e-6:
        assert (found.low > 0 or found.high < 0) == (p < 0.05)


def test_equal_values_make_an_interval_without_width():
    assert interval([0.1, 0.1, 0.1]) == Interval(0.1, 0.1, 0.1, 3)  # their computed mean is 0.10000000000000002
    assert judge(interval([0.1, 0.1, 0.1]), above()) == "reproduced"
    assert judge(interval([0.0, 0.0, 0.0]), above()) == "inconclusive"
    assert judge(interval([0.0, 0.0, 0.0]), within()) == "reproduced"


def test_values_that_are_not_independent_are_counted_as_fewer():
    values = [1.0, 2.0, 4.0, 1.5, 2.5, 3.0]
    found = interval(values, independent=4)
    half = stats.t.ppf(0.975, 3) * np.std(values, ddof=1) / 2
    assert found.n == 4
    assert found.low == pytest.approx(np.mean(values) - half)
    assert interval(values, independent=1) == Interval(np.mean(values), None, None, 1)
    assert interval([1.0, 2.0], independent=5).n == 2


def test_fewer_than_two_values_are_too_few():
    assert interval([]) == Interval(None, None, None, 0)
    for values in ([], [5.0]):
        assert judge(interval(values), above()) == "too few runs"


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
        (0.9, 1.1, within(), "inconclusive"),
        (-3.0, 3.0, within(), "inconclusive"),
        (1.1, 3.0, within(), "not reproduced"),
        (-3.0, -1.1, within(), "not reproduced"),
        (-9.0, 0.9, below(EQUAL), "reproduced"),
        (0.5, 1.5, below(EQUAL), "inconclusive"),
        (1.1, 1.5, below(EQUAL), "not reproduced"),
        (-9.0, 0.9, no_gain(), "reproduced"),
        (-0.1, 1.5, no_gain(), "inconclusive"),
        (0.1, 0.5, no_gain(), "not reproduced"),
        (76.0, 80.0, above(75), "reproduced"),
        (60.0, 70.0, above(75), "not reproduced"),
    ],
)
def test_a_rule_says_where_the_whole_interval_must_lie(low, high, rule, verdict):
    assert judge(Interval((low + high) / 2, low, high, 3), rule) == verdict


def test_rules_are_named_as_people_say_them():
    assert [rule.text for rule in (above(), below(), within(), above(75), above(-EQUAL), no_gain())] == [
        "above 0", "below 0", "within ±1", "above 75", "above -1", "below 1, and not above 0",
    ]  # fmt: skip


# Findings and verdicts ------------------------------------------------------------------------------------------------

VERDICTS = ("reproduced", "not reproduced", "inconclusive", "too few runs", "not run")


def finding(verdict: str, scale: str = "demo") -> Finding:
    return Finding(key="gain", statistic="gain", setting="", scale=scale, rule=above(), verdict=verdict)  # type: ignore[arg-type]


def statistic(sample=lambda setting: [Sample([1.0, 1.1, 1.2])], **more) -> Statistic:
    fields = {"key": "accuracy", "words": "gain", "rule": above(), "study": "dynamics", "pairs": ("cifar100-resnet18",)}
    return Statistic(sample=sample, **{**fields, **more})


@pytest.mark.parametrize("verdicts", list(combinations_with_replacement(VERDICTS, 3)))
def test_a_claim_is_as_good_as_its_worst_finding(verdicts):
    found = overall([finding(verdict) for verdict in verdicts])
    if set(verdicts) == {"not run"}:
        assert found == "not run"
    elif "not reproduced" in verdicts:
        assert found == "not reproduced"
    elif "too few runs" in verdicts:
        assert found == "too few runs"
    elif set(verdicts) == {"reproduced"}:
        assert found == "reproduced"
    else:
        assert found == "inconclusive"


def test_the_largest_scale_decides():
    small = [finding("not reproduced", "demo"), finding("inconclusive", "small")]
    assert overall(small) == "inconclusive"
    assert overall([*small, finding("reproduced", "paper")]) == "reproduced"


def test_a_finding_knows_its_interval_and_why_it_may_have_no_width():
    found = finding_of(statistic(), Sample([1.0, 1.0, 1.0], notes=("seed 3 is missing",)), "s", "")
    assert (found.mean, found.low, found.high, found.n, found.verdict) == (1.0, 1.0, 1.0, 3, "reproduced")
    assert found.note == "seed 3 is missing; all values are equal, so the interval has no width"


def test_what_rounding_leaves_of_equal_numbers_is_no_difference():
    rest = 0.1 + 0.2 - 0.3
    found = finding_of(statistic(), Sample([rest, rest, rest]), "s", "demo")
    assert rest > 0
    assert (found.mean, found.verdict) == (0.0, "inconclusive")
    negative = finding_of(statistic(), Sample([-0.0, -rest]), "s", "demo")
    assert [str(value) for value in negative.values] == ["0.0", "0.0"]


def test_values_that_cannot_stand_for_all_seeds_make_no_interval():
    found = finding_of(statistic(), Sample([1.0, 2.0], complete=False), "s", "demo")
    assert (found.values, found.mean, found.low, found.verdict) == ((1.0, 2.0), None, None, "too few runs")


def test_the_papers_value_beside_another_data_set_is_for_orientation():
    (demo,) = findings_of(16, statistic(), results(setting()))
    assert demo.paper.startswith("+0.92 (77.63 → 78.55, Table 1") and demo.note == REFERENCE
    (paper,) = findings_of(16, statistic(), results(setting(scale="paper")))
    assert paper.paper == demo.paper and paper.note == ""


def test_a_target_is_named_in_the_statistic():
    found = findings_of(10, statistic(lambda setting: [Sample([1.0], target="cifar10")], key="acc"), results(setting()))
    assert [(each.statistic, each.paper.partition(" ")[0]) for each in found] == [("gain, on cifar10", "+1.93")]


def test_a_statistic_keeps_to_its_pairs_and_scales():
    settings = setting(), setting(scale="paper"), setting("cifar10-resnet18")
    assert [each.scale for each in findings_of(1, statistic(), results(*settings))] == ["demo", "paper"]
    assert [each.scale for each in findings_of(1, statistic(scales=("paper",)), results(*settings))] == ["paper"]


def test_a_missing_statistic_is_asked_for_at_the_scale_of_the_others():
    spec = ClaimSpec(number=1, title="it gains", statistics=[statistic(), statistic(lambda setting: [], key="b")])
    found = evaluate(spec, results(setting(scale="small")))
    assert [(each.verdict, each.scale) for each in found.findings] == [("reproduced", "small"), ("not run", "small")]
    assert found.findings[1].note.startswith("emabank run dynamics --scale small")
    assert found.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("state", "reason", "said"),
    [("running", "", "is not done yet"), ("failed", "", "failed"), ("failed", "disk full", "failed: disk full"),
     ("done", "", "is done, but has no runs with this measure")],
)  # fmt: skip
def test_how_the_study_stands_is_said(state, reason, said):
    study = Study(name="dynamics", scale="demo", command="", state=state, reason=reason)
    found = evaluate(ClaimSpec(number=1, title="it gains", statistics=[statistic()]), Results(studies=[study]))
    assert found.findings[0].note == f"emabank run dynamics; dynamics (demo) {said}"
