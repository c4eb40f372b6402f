"""Claim 15: time of an update over that of the steps between two, repetition by repetition."""

from dataclasses import replace

import pytest

from emabank.study.report.claims.cost import overhead_claim
from tests.study.report.claims.shapes import evidence, setting

FOUND = evidence(setting())
(OVERHEAD,) = FOUND.overheads


def claim(**changed):
    return overhead_claim(replace(FOUND, overheads=[replace(OVERHEAD, **changed)]))


def test_each_repetition_gives_a_share():
    found = claim(step_seconds=(0.1, 0.2, 0.1), update_seconds=(0.004, 0.004, 0.002))
    (part,) = found.parts
    assert part.values == (pytest.approx(0.25), pytest.approx(0.125), pytest.approx(0.125))
    assert (found.verdict, part.rule, part.n, part.setting) == ("reproduced", "below 1", 3, "resnet8")
    assert part.paper and "ours" in found.note


def test_a_costly_update_refutes_the_claim():
    assert claim(update_seconds=(0.05, 0.06, 0.05)).verdict == "not reproduced"
    assert claim(update_seconds=(0.001, 0.05, 0.001)).verdict == "inconclusive"


def test_other_numbers_of_averages_and_other_periods_are_not_the_claims():
    assert claim(every=1).verdict == "not run"
    assert claim(averages=1).verdict == "not run"
    assert claim(every=1).parts[0].note.startswith("emabank run sampling-period")


@pytest.mark.parametrize("steps", [(), (0.1,), (0.0, 0.0, 0.1), (float("nan"), 0.0, 0.1)])
def test_repetitions_without_a_time_are_left_out(steps):
    found = claim(step_seconds=steps)
    assert found.verdict == "too few runs"
    assert found.parts[0].n == (1 if steps else 0)
