"""Parts are made of what each setting has, and one verdict of all parts by a strict rule."""

from itertools import combinations_with_replacement

import pytest

from emabank.study.report.claims.interval import above
from emabank.study.report.claims.question import (
    ORIENTATION,
    Measured,
    Question,
    Statistic,
    answer,
    overall,
    part_of,
    parts_of,
)
from emabank.study.report.evidence import Evidence, Study
from emabank.study.report.verdict import Part
from tests.study.report.claims.shapes import evidence, setting

VERDICTS = ("reproduced", "not reproduced", "inconclusive", "too few runs", "not run")


def part(verdict: str, scale: str = "demo") -> Part:
    return Part(statistic="gain", setting="", scale=scale, values=(), mean=None, low=None, high=None, n=0, rule="",
                verdict=verdict)  # type: ignore[arg-type] # fmt: skip


def statistic(measure=lambda setting: [Measured([1.0, 1.1, 1.2])], **more) -> Statistic:
    given = {"key": "accuracy", "words": "gain", "rule": above(), "study": "dynamics", "pairs": ("cifar100-resnet18",)}
    return Statistic(measure=measure, **{**given, **more})


@pytest.mark.parametrize("verdicts", list(combinations_with_replacement(VERDICTS, 3)))
def test_a_claim_is_as_good_as_its_worst_part(verdicts):
    found = overall([part(verdict) for verdict in verdicts])
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
    small = [part("not reproduced", "demo"), part("inconclusive", "small")]
    assert overall(small) == "inconclusive"
    assert overall([*small, part("reproduced", "paper")]) == "reproduced"


def test_a_part_knows_its_interval_and_why_it_may_have_no_width():
    found = part_of(
        Measured([1.0, 1.0, 1.0], note="seed 3 is missing"), words="gain", rule=above(), setting="s", scale=""
    )
    assert (found.mean, found.low, found.high, found.n, found.verdict) == (1.0, 1.0, 1.0, 3, "reproduced")
    assert found.note == "seed 3 is missing; all values are equal, so the interval has no width"


def test_what_rounding_leaves_of_equal_numbers_is_no_difference():
    rest = 0.1 + 0.2 - 0.3
    found = part_of(Measured([rest, rest, rest]), words="gain", rule=above(), setting="s", scale="demo")
    assert rest > 0
    assert (found.mean, found.verdict) == (0.0, "inconclusive")
    negative = part_of(Measured([-0.0, -rest]), words="gain", rule=above(), setting="s", scale="demo")
    assert [str(value) for value in negative.values] == ["0.0", "0.0"]


def test_values_that_cannot_stand_for_all_seeds_make_no_interval():
    found = part_of(Measured([1.0, 2.0], whole=False), words="gain", rule=above(), setting="s", scale="demo")
    assert (found.values, found.mean, found.low, found.verdict) == ((1.0, 2.0), None, None, "too few runs")


def test_the_papers_value_beside_another_data_set_is_for_orientation():
    (demo,) = parts_of(16, statistic(), evidence(setting()))
    assert demo.paper.startswith("+0.92 (77.63 → 78.55, Table 1") and demo.note == ORIENTATION
    (paper,) = parts_of(16, statistic(), evidence(setting(scale="paper")))
    assert paper.paper == demo.paper and paper.note == ""


def test_a_target_is_named_in_the_statistic():
    found = parts_of(10, statistic(lambda setting: [Measured([1.0], target="cifar10")], key="acc"), evidence(setting()))
    assert [(each.statistic, each.paper.partition(" ")[0]) for each in found] == [("gain, on cifar10", "+1.93")]


def test_a_statistic_keeps_to_its_pairs_and_scales():
    settings = setting(), setting(scale="paper"), setting("cifar10-resnet18")
    assert [each.scale for each in parts_of(1, statistic(), evidence(*settings))] == ["demo", "paper"]
    assert [each.scale for each in parts_of(1, statistic(scales=("paper",)), evidence(*settings))] == ["paper"]


def test_a_missing_statistic_is_asked_for_at_the_scale_of_the_others():
    question = Question(number=1, title="it gains", statistics=[statistic(), statistic(lambda setting: [], key="b")])
    found = answer(question, evidence(setting(scale="small")))
    assert [(each.verdict, each.scale) for each in found.parts] == [("reproduced", "small"), ("not run", "small")]
    assert found.parts[1].note.startswith("emabank run dynamics --scale small")
    assert found.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("state", "reason", "said"),
    [("running", "", "is not done yet"), ("failed", "", "failed"), ("failed", "disk full", "failed: disk full"),
     ("done", "", "is done, but has no runs with this measure")],
)  # fmt: skip
def test_how_the_study_stands_is_said(state, reason, said):
    study = Study(name="dynamics", scale="demo", command="", state=state, reason=reason)
    found = answer(Question(number=1, title="it gains", statistics=[statistic()]), Evidence(studies=[study]))
    assert found.parts[0].note == f"emabank run dynamics; dynamics (demo) {said}"
