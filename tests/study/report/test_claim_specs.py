"""Every statistic of the nineteen claims, and every claim, can go both ways; and what is missing is named."""

from dataclasses import replace

import numpy as np
import pytest

from emabank.study.report.claim_specs import make_claims
from emabank.study.report.results import LIVE, Curve, Results, Setting, Study
from tests.study.report.made_results import MEASURES, PAIRS, first_seeds, with_values
from tests.study.report.shapes import (
    AVERAGES,
    EPOCHS,
    T,
    findings_of,
    held,
    leaderboard,
    matching,
    results,
    runs,
    setting,
)
from tests.support.processes import run

NUMBERS = range(1, 20)


def claim(number: int, found: Results):
    return make_claims(found)[number - 1]


def behind(key: Curve, curve: np.ndarray) -> np.ndarray:
    return curve - 0.4 if key.weights != LIVE else curve


def behind_early(key: Curve, curve: np.ndarray) -> np.ndarray:
    return np.where((T <= 0.25) & (key.weights != LIVE), curve - 0.4, curve)


def ahead_late(key: Curve, curve: np.ndarray) -> np.ndarray:
    return np.where((T > 0.25) & (key.weights != LIVE), curve + 0.3, curve)


def apart_at_end(key: Curve, curve: np.ndarray) -> np.ndarray:
    return np.where((T == 1) & (key.weights != LIVE), curve + 0.05, curve)


def rising(key: Curve, curve: np.ndarray) -> np.ndarray:
    return curve + 0.5 * T


def falling(key: Curve, curve: np.ndarray) -> np.ndarray:
    return curve - 0.2 * T


def higher(key: Curve, curve: np.ndarray) -> np.ndarray:
    return curve + 0.03


def averages_higher(key: Curve, curve: np.ndarray) -> np.ndarray:
    return curve + 0.03 * (key.weights != LIVE)


def spoilt_early(key: Curve, curve: np.ndarray) -> np.ndarray:
    return np.where((T <= 0.25) & (key.batchnorm == "recomputed"), curve - 0.9, curve)


def spoilt_later(key: Curve, curve: np.ndarray) -> np.ndarray:
    return np.where((T > 0.25) & (key.batchnorm == "recomputed"), curve - 0.05, curve)


def the_other_way_round(key: Curve, curve: np.ndarray) -> np.ndarray:
    """The slowest average peaks first and lowest."""
    if key.weights == LIVE or key.split == "train":
        return curve
    order = AVERAGES.index(key.weights)
    return 0.8 - 0.004 * order - 0.2 * np.abs(T - 0.7 + 0.05 * order) + 0 * curve


def memorising(key: Curve, curve: np.ndarray) -> np.ndarray:
    return T**0.2 if key.metric == "memorised" and key.weights != LIVE else curve


def late_choice(found: Setting) -> Setting:
    choices = [{**choice, "averages": {"accuracy": (AVERAGES[2], 36), "loss": (AVERAGES[2], 39)}}
               for choice in found.choices]  # fmt: skip
    return replace(found, choices=choices)


def slow_update() -> Results:
    found = results(setting())
    return replace(found, overheads=[replace(found.overheads[0], update_seconds=(0.1, 0.11, 0.12))])


NOISY = "cifar100n-resnet34"
FALSE = {  # results in which one statistic of a claim is false, by the claim's number and the statistic's place
    (1, 0): lambda: setting(refit=runs("refit", behind)),
    (1, 1): lambda: setting(refit=runs("refit", behind_early)),
    (1, 2): lambda: setting(refit=runs("refit", ahead_late)),
    (2, 0): lambda: late_choice(setting()),
    (2, 1): lambda: setting(refit=runs("refit", rising)),
    (3, 0): lambda: setting(refit=runs("refit", apart_at_end)),
    (4, 0): lambda: setting(every_4=runs("every 4", higher)),
    (4, 1): lambda: setting(every_4=runs("every 4", higher)),
    (5, 0): lambda: setting(refit=runs("refit", spoilt_early)),
    (5, 1): lambda: setting(refit=runs("refit", spoilt_later)),
    (5, 2): lambda: setting(refit=runs("refit", the_other_way_round)),
    (5, 3): lambda: setting(refit=runs("refit", the_other_way_round)),
    (6, 0): lambda: setting(NOISY, changed={("slowest (acc.)", "accuracy"): 0.70}),
    (6, 1): lambda: setting(NOISY, refit=runs("refit", memorising)),
    (7, 0): lambda: setting(NOISY, constant=runs("constant", falling)),
    (7, 1): lambda: setting(NOISY, refit=runs("refit", rising)),
    (7, 2): lambda: setting(NOISY, constant=runs("constant", falling)),
    (8, 0): lambda: setting(changed={("slowest (loss)", "churn"): 0.25}),
    (8, 1): lambda: setting(changed={("slowest (loss)", "js"): 0.09}),
    (9, 0): lambda: setting(changed={("slowest (loss)", "ece"): 0.15}),
    (9, 1): lambda: setting(changed={("slowest (loss)", "ece_ts"): 0.07}),
    (9, 2): lambda: setting(changed={("slowest (loss)", "ece_ts"): 0.08}),
    (10, 0): lambda: setting(changed={("slowest (acc.)", "transfer:other"): 0.45}),
    (10, 1): lambda: setting(changed={("slowest (loss)", "transfer:other"): 0.45}),
    (11, 0): lambda: setting(bootstrap=runs("bootstrap", higher)),
    (11, 1): lambda: setting(bootstrap=runs("bootstrap", averages_higher)),
    (12, 0): lambda: setting(**{"tune_at_0.8": runs("t", averages_higher)}),
    (13, 0): lambda: setting(step=runs("step")),
    (13, 1): lambda: setting(step=runs("step", apart_at_end)),
    (14, 0): lambda: setting(changed={("SWA", "accuracy"): 0.82}),
    (16, 0): lambda: setting(changed={("slowest (acc.)", "accuracy"): 0.74}),
    (16, 1): lambda: setting(changed={("slowest (acc.)", "loss"): 1.3}),
    (16, 2): lambda: setting(changed={("SWA", "accuracy"): 0.74}),
    (17, 0): lambda: late_choice(setting()),
    (18, 0): lambda: setting(changed={("slowest (loss)", "ece"): 0.1}),
    (18, 1): lambda: setting(changed={("slowest (loss)", "churn"): 0.16}),
    (18, 2): lambda: setting(changed={("slowest (loss)", "transfer:other"): 0.52}),
}


def false(number: int, place: int) -> Results:
    if number == 15:
        return slow_update()
    return leaderboard(0.56) if number == 19 else results(FALSE[number, place]())


@pytest.fixture(scope="module")
def holding():
    found = make_claims(results())
    return [*found[:18], make_claims(leaderboard(0.87))[18]]


def test_the_claims_are_nineteen_and_in_order(holding):
    assert [each.number for each in holding] == list(NUMBERS)


@pytest.mark.parametrize("number", NUMBERS)
def test_where_it_holds_every_part_and_the_claim_are_reproduced(holding, number):
    found = holding[number - 1]
    assert {finding.verdict for finding in found.findings} == {"reproduced"}
    assert found.verdict == "reproduced"


@pytest.mark.parametrize(("number", "place"), [*FALSE, (15, 0), (19, 0)])
def test_where_a_statistic_is_false_it_is_not_reproduced_and_nor_is_the_claim(number, place):
    found = claim(number, false(number, place))
    assert {finding.verdict for finding in findings_of(found, place)} == {"not reproduced"}
    assert found.verdict == "not reproduced"


def test_the_false_results_covers_every_statistic(holding):
    for found in holding:
        places = len({finding.key for finding in found.findings})
        assert {(found.number, place) for place in range(places)} <= {*FALSE, (15, 0), (19, 0)}


@pytest.mark.parametrize("number", NUMBERS)
def test_nothing_there_is_not_run_and_says_what_to_run(number):
    found = claim(number, Results())
    assert found.verdict == "not run"
    for finding in found.findings:
        assert (finding.verdict, finding.values, finding.mean, finding.n) == ("not run", (), None, 0)
        assert finding.note.startswith("emabank run ") and finding.note.split()[2] in found.studies
    assert len({finding.statistic for finding in found.findings}) == len(found.findings)


@pytest.mark.parametrize("number", [each for each in NUMBERS if each not in (15, 19)])
def test_one_seed_is_too_few_runs(number):
    settings = [first_seeds(each, 1) for each in (setting(), setting(NOISY))]
    # One seed has no pair; where there is one value of a pair, it counts as few.
    settings = [with_values(each, {"churn": [0.1], "js": [0.1]}) for each in settings]
    found = claim(number, results(*settings))
    assert {finding.verdict for finding in found.findings} == {"too few runs"}
    assert found.verdict == "too few runs"
    assert all(finding.n == 1 and finding.low is None for finding in found.findings)


def test_seeds_that_do_not_agree_are_inconclusive():
    apart = with_values(setting(), {"accuracy": [0.7, 0.8, 0.75]}, "slowest (acc.)")
    found = claim(16, results(apart))
    assert [finding.verdict for finding in found.findings] == ["inconclusive", "reproduced", "reproduced"]
    assert found.verdict == "inconclusive"


def test_the_leaderboard_needs_the_papers_scale():
    assert claim(19, results()).verdict == "not run"
    assert claim(19, results()).findings[0].note.startswith("emabank run label-noise --scale paper")


def test_a_larger_scale_decides_and_a_smaller_one_is_shown():
    good, bad = setting(), setting(scale="small", changed={("slowest (acc.)", "accuracy"): 0.74})
    found = claim(16, results(good, bad))
    assert found.verdict == "not reproduced"
    assert [(finding.scale, finding.verdict) for finding in findings_of(found, 0)] == [
        ("small", "not reproduced"), ("demo", "reproduced"),
    ]  # fmt: skip
    assert claim(16, results(replace(good, scale="paper"), bad)).verdict == "reproduced"


def test_half_a_claim_does_not_stand_for_the_whole():
    whole = setting()
    without_swa = replace(whole, columns=[column for column in whole.columns if column.title != "SWA"])
    found = claim(16, results(without_swa))
    assert [finding.verdict for finding in found.findings] == ["reproduced", "reproduced", "not run"]
    assert found.verdict == "inconclusive"
    assert found.findings[2].note.startswith("emabank run generalization --scale demo")


def test_a_study_that_failed_is_named_with_its_reason():
    failed = Study(name="bootstrap", scale="demo", command="emabank run bootstrap", state="failed", reason="disk full")
    found = claim(11, Results(studies=[failed]))
    assert found.findings[0].note == "emabank run bootstrap; bootstrap (demo) failed: disk full"


def test_only_the_pairs_that_a_claim_is_about_take_part(holding):
    titles = {number: {finding.setting for finding in holding[number - 1].findings} for number in NUMBERS}
    noisy = {f"digits, ResNet-8 ({pair})" for pair in PAIRS if "n-" in pair.replace("wrn-", "")}
    assert len(titles[16]) == 5 and not titles[16] & noisy
    assert titles[6] < noisy and len(titles[6]) == 2
    assert titles[7] == noisy
    assert len(titles[1]) == 7
    assert "digits, ResNet-8 (cifar100-vgg16)" not in titles[5] and len(titles[5]) == 6


def test_no_number_is_ever_nan():
    def lost(key: Curve, curve: np.ndarray) -> np.ndarray:
        return np.full(EPOCHS, np.nan) if key.split == "test" else curve

    whole = setting(refit=runs("refit", lost), step=(*runs("step", lost)[:1], *runs("step", matching)[1:]))
    holes = {metric: [None, float("nan"), 0.5] for metric in MEASURES}
    whole = with_values(whole, holes)
    for found in make_claims(results(whole, setting(NOISY, constant=runs("constant", held)))):
        for finding in found.findings:
            assert all(
                np.isfinite(end)
                for end in (*finding.values, finding.mean, finding.low, finding.high)
                if end is not None
            )
    step = findings_of(claim(13, results(whole)), 0)[0]
    assert step.n == 2 and "no value for seed 0" in step.note


def test_the_same_results_gives_the_same_claims():
    assert make_claims(results()) == make_claims(results())


@pytest.mark.parametrize("module", ["torch", "scipy", "pandas", "matplotlib"])
def test_the_claims_need_no_heavy_package(module):
    finished = run(
        "import sys, emabank.study.report.claim_specs, emabank.study.report.render\n"
        f"assert 'numpy' in sys.modules and {module!r} not in sys.modules"
    )
    assert finished.returncode == 0, finished.stderr


def test_what_a_setting_lacks_is_never_an_error():
    bare = replace(setting(), variants={}, columns=[], choices=[])
    assert {each.verdict for each in make_claims(replace(results(bare), overheads=()))} == {"not run"}
    no_choice = replace(setting(), choices=[])
    assert claim(2, results(no_choice)).verdict == "not run"
