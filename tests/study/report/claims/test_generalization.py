"""Claims 14 and 16: differences of the refits' columns on test, with scipy's paired test beside them."""

import pytest
from scipy import stats

from emabank.study.report.claims.all import claims
from emabank.study.report.claims.generalization import BESIDE_SWA, TEST
from tests.study.report.claims.shapes import evidence, setting, values


def measures(column: str, metric: str) -> list[float]:
    found = setting().values(column, metric, trained_on="100%", split="test")
    assert found is not None
    return found


CASES = [
    (BESIDE_SWA, 0, "slowest (acc.)", "SWA", "accuracy", 100),
    (TEST, 0, "slowest (acc.)", "SGD", "accuracy", 100),
    (TEST, 1, "slowest (acc.)", "SGD", "loss", 1),
    (TEST, 2, "SWA", "SGD", "accuracy", 100),
]


@pytest.mark.parametrize(("question", "place", "one", "other", "metric", "unit"), CASES)
def test_it_is_the_difference_of_two_columns_with_the_interval_of_a_paired_test(
    question, place, one, other, metric, unit
):
    ours, base = measures(one, metric), measures(other, metric)
    assert values(question, place, setting()) == [
        pytest.approx([unit * (a - b) for a, b in zip(ours, base, strict=True)])
    ]
    part = claims(evidence(setting()))[question.number - 1].parts[place]
    low, high = stats.ttest_rel(ours, base).confidence_interval(0.95)
    assert (part.low, part.high) == (pytest.approx(unit * low), pytest.approx(unit * high))
