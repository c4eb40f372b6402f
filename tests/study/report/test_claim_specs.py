"""Every statistic of every claim can go both ways; the primary one decides, the others are exceptions."""

from dataclasses import replace

import numpy as np
import pytest

from emabank.study.report.claim_specs import CLAIMS, OVERHEAD, make_claims
from emabank.study.report.results import LIVE, Curve, Results, Setting
from tests.study.report.made_results import MEASURES, PAIRS, first_seeds, with_values
from tests.study.report.shapes import (
    AVERAGES,
    EPOCHS,
    T,
    chosen_with_noisy_labels,
    findings_of,
    held,
    leaderboard,
    matching,
    results,
    runs,
    setting,
)
from tests.support.processes import run

NUMBERS = [*map(str, range(1, 20)), "b", "c"]


def claim(number: str, found: Results):
    return make_claims(found)[NUMBERS.index(number)]


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


def slow(key: Curve, curve: np.ndarray) -> np.ndarray:
    """Averages that never reach the best of the live weights."""
    return 0.5 * curve if key.weights != LIVE else np.where(T == 0.5, 0.9, curve)


NOISY, CONSTANT = "cifar100n-resnet34", "cifar100n-resnet18"
FALSE = {  # a setting in which one statistic of a claim is false, by the claim's number and the statistic's key
    ("1", "share"): lambda: setting(refit=runs("refit", behind)),
    ("1", "chosen"): lambda: setting(refit=runs("refit", behind)),
    ("1", "early"): lambda: setting(refit=runs("refit", behind_early)),
    ("1", "most"): lambda: setting(refit=runs("refit", ahead_late)),
    ("2", "when"): lambda: late_choice(setting()),
    ("2", "afterwards"): lambda: setting(refit=runs("refit", rising)),
    ("3", "end"): lambda: setting(refit=runs("refit", apart_at_end)),
    ("4", "choice"): lambda: setting(every_4=runs("every 4", higher)),
    ("4", "curves"): lambda: setting(every_4=runs("every 4", higher)),
    ("5", "early"): lambda: setting(refit=runs("refit", spoilt_early)),
    ("5", "choice"): lambda: setting(refit=runs("refit", spoilt_later)),
    ("5", "later"): lambda: setting(refit=runs("refit", the_other_way_round)),
    ("5", "higher"): lambda: setting(refit=runs("refit", the_other_way_round)),
    ("6", "chosen"): lambda: setting(NOISY, changed={("EMA (acc.)", "accuracy"): 0.70}),
    ("6", "ahead"): lambda: setting(NOISY, changed={("slowest (acc.)", "accuracy"): 0.70}),
    ("6", "memorised"): lambda: setting(NOISY, refit=runs("refit", memorising)),
    ("7", "difference"): lambda: setting(CONSTANT, constant=runs("constant", falling)),
    ("7", "constant"): lambda: setting(CONSTANT, constant=runs("constant", falling)),
    ("7", "cosine"): lambda: setting(CONSTANT, refit=runs("refit", rising)),
    ("8", "chosen"): lambda: setting(changed={("EMA (loss)", "churn"): 0.25}),
    ("8", "churn"): lambda: setting(changed={("slowest (loss)", "churn"): 0.25}),
    ("8", "js"): lambda: setting(changed={("slowest (loss)", "js"): 0.09}),
    ("9", "chosen"): lambda: setting(changed={("EMA (loss)", "ece"): 0.15}),
    ("9", "ece"): lambda: setting(changed={("slowest (loss)", "ece"): 0.15}),
    ("9", "ece_ts"): lambda: setting(changed={("slowest (loss)", "ece_ts"): 0.07}),
    ("9", "scaled"): lambda: setting(changed={("slowest (loss)", "ece_ts"): 0.08}),
    ("10", "chosen"): lambda: setting(changed={("EMA (loss)", "transfer:other"): 0.45}),
    ("10", "acc"): lambda: setting(changed={("slowest (acc.)", "transfer:other"): 0.45}),
    ("10", "loss"): lambda: setting(changed={("slowest (loss)", "transfer:other"): 0.45}),
    ("11", "live"): lambda: setting(bootstrap=runs("bootstrap", higher)),
    ("11", "average"): lambda: setting(bootstrap=runs("bootstrap", averages_higher)),
    ("11", "live5"): lambda: setting(bootstrap_every_5=runs("bootstrap", higher)),
    ("11", "average5"): lambda: setting(bootstrap_every_5=runs("bootstrap", averages_higher)),
    ("12", "rate"): lambda: setting(**{"tune_at_0.8": runs("t", averages_higher)}),
    ("13", "chosen"): lambda: setting(step=runs("step")),
    ("13", "end"): lambda: setting(step=runs("step", apart_at_end)),
    ("14", "chosen"): lambda: setting(changed={("EMA (acc.)", "accuracy"): 0.82}),
    ("14", "swa"): lambda: setting(changed={("slowest (acc.)", "accuracy"): 0.82}),
    ("16", "chosen"): lambda: setting(changed={("EMA (acc.)", "accuracy"): 0.74}),
    ("16", "best"): lambda: setting(changed={("SGD (best)", "accuracy"): 0.80}),
    ("16", "accuracy"): lambda: setting(changed={("slowest (acc.)", "accuracy"): 0.74}),
    ("16", "loss"): lambda: setting(changed={("slowest (acc.)", "loss"): 1.3}),
    ("16", "swa"): lambda: setting(changed={("SWA", "accuracy"): 0.74}),
    ("17", "epochs"): lambda: late_choice(setting()),
    ("18", "chosen"): lambda: setting(changed={("EMA (loss)", "ece"): 0.1}),
    ("18", "ece"): lambda: setting(changed={("slowest (loss)", "ece"): 0.1}),
    ("18", "churn"): lambda: setting(changed={("slowest (loss)", "churn"): 0.16}),
    ("18", "transfer"): lambda: setting(changed={("slowest (loss)", "transfer:other"): 0.52}),
    ("b", "lost"): lambda: chosen_with_noisy_labels(setting(NOISY), average=0.75),
    ("c", "steps"): lambda: setting(tune=runs("tune", slow)),
}  # fmt: skip


def false(number: str, key: str) -> Results:
    if number == "15":
        return slow_update()
    return leaderboard(0.56) if number == "19" else results(FALSE[number, key]())


@pytest.fixture(scope="module")
def holding():
    noisy = [chosen_with_noisy_labels(setting(pair)) if "n-resnet34" in pair else setting(pair) for pair in PAIRS]
    made = make_claims(results(*noisy))
    return [*made[:18], make_claims(leaderboard(0.87))[18], *made[19:]]


def test_the_claims_are_nineteen_and_two_of_our_own_in_order(holding):
    assert [found.number for found in holding] == NUMBERS
    assert [found.number for found in holding if found.beyond] == ["b", "c"]


def test_where_it_holds_a_claim_is_reproduced_without_exception(holding):
    for found in holding:
        assert {finding.verdict for finding in found.findings} == {"reproduced"}, found.number
        assert found.verdict == "reproduced" and not found.exceptions, found.number
        assert found.primary.seeds_for == found.primary.n >= 3, found.number


@pytest.mark.parametrize(("number", "key"), [*FALSE, ("15", "share"), ("19", "place")])
def test_where_a_statistic_is_false_it_is_not_reproduced(number, key):
    """The claim is not either if it is the primary one; else the claim has it as an exception, if it stands at all."""
    found = claim(number, false(number, key))
    own = findings_of(found, key)
    assert {finding.verdict for finding in own} == {"not reproduced"}
    if key == found.primary.key:
        assert found.verdict == "not reproduced"
    else:
        exceptions = {finding.key for finding in found.exceptions}
        assert key in exceptions if found.verdict == "reproduced" else not exceptions


def test_the_false_results_cover_every_statistic():
    covered = {*FALSE, ("15", "share"), ("19", "place")}
    assert covered == {(spec.number, statistic.key) for spec in (*CLAIMS, OVERHEAD) for statistic in spec.statistics}


def test_nothing_there_is_not_run_and_says_what_to_run():
    for found in make_claims(Results()):
        assert found.verdict == "not run" and len(found.findings) == 1, found.number
        assert found.primary.note.startswith(f"emabank run {found.studies[0]}"), found.number


def test_one_seed_is_too_few_runs():
    settings = setting(), chosen_with_noisy_labels(setting(NOISY)), setting(CONSTANT)
    for found in make_claims(results(*(first_seeds(whole, 1) for whole in settings))):
        if found.number not in ("15", "19"):  # of repetitions, and of the paper's scale
            assert found.verdict == "too few runs", found.number
            assert all(finding.n <= 1 and finding.low is None for finding in found.findings), found.number


# The choice by noisy labels -------------------------------------------------------------------------------------------


def test_the_choice_by_noisy_labels_leads_and_that_by_clean_ones_is_secondary():
    """In points: 77.5 - 75 = 2.5 by noisy, 78 - 76.5 = 1.5 by clean labels, up to the made-up seeds."""
    found = claim("6", results(chosen_with_noisy_labels(setting(NOISY))))
    assert found.primary.mean == pytest.approx(2.5, abs=0.02)
    (clean,) = findings_of(found, "chosen_clean")
    assert clean.mean == pytest.approx(1.5, abs=0.02) and clean.role == "secondary"
    without = claim("6", results(setting(NOISY)))
    assert without.primary.mean == pytest.approx(1.5, abs=0.02) and not findings_of(without, "chosen_clean")


def test_what_is_lost_is_the_clean_choice_minus_the_noisy_one():
    found = claim("b", results(chosen_with_noisy_labels(setting(NOISY), average=0.775)))
    assert found.primary.mean == pytest.approx(100 * (0.78 - 0.775), abs=0.02)
    assert claim("b", results(setting(NOISY))).verdict == "not run", "no run has that choice"


def test_epochs_are_those_of_the_noisy_choice():
    noisy = chosen_with_noisy_labels(setting(NOISY), epoch=20)
    assert claim("2", results(noisy)).primary.values == (50.0,) * 3
    assert [finding.values for finding in findings_of(claim("2", results(noisy)), "when_clean")] == [(62.5,) * 3]
    assert claim("17", results(noisy)).primary.values == (-25.0,) * 3


def test_weights_that_have_no_noisy_choice_are_compared_as_clean_labels_chose_both():
    for number, key in (("6", "ahead"), ("16", "accuracy")):
        pair = NOISY if number == "6" else PAIRS[0]
        plain, noisy = (
            findings_of(claim(number, results(whole)), key)
            for whole in (setting(pair), chosen_with_noisy_labels(setting(pair)))
        )
        assert [finding.values for finding in plain] == [finding.values for finding in noisy]


# What is missing ------------------------------------------------------------------------------------------------------


def test_the_settings_of_a_claim_are_the_papers(holding):
    counts = {found.number: found.primary.setting for found in holding}
    assert {number: counts[number] for number in ("1", "6", "10", "12", "16")} == {
        "1": "mean of 7 settings", "6": "mean of 2 settings", "10": "mean of 3 settings", "12": "mean of 2 settings",
        "16": "mean of 5 settings",
    }  # fmt: skip
    assert all(not found.primary.missing for found in holding)
    alone = claim("16", results(setting("cifar100-vgg16"))).primary
    assert len(alone.missing) == 4 and "CIFAR-100, VGG-16" not in alone.missing


def test_no_number_is_ever_nan():
    def lost(key: Curve, curve: np.ndarray) -> np.ndarray:
        return np.full(EPOCHS, np.nan) if key.split == "test" else curve

    whole = setting(refit=runs("refit", lost), step=(*runs("step", lost)[:1], *runs("step", matching)[1:]))
    holes = {metric: [None, float("nan"), 0.5] for metric in MEASURES}
    whole = with_values(whole, holes)
    for found in make_claims(results(whole, setting(NOISY, constant=runs("constant", held)))):
        for finding in found.findings:
            ends = (*finding.values, finding.mean, finding.low, finding.high)
            assert all(np.isfinite(end) for end in ends if end is not None)
    assert claim("13", results(whole)).primary.left_out == (0,)


@pytest.mark.parametrize("module", ["torch", "scipy", "pandas", "matplotlib"])
def test_the_claims_need_no_heavy_package(module):
    finished = run(
        "import sys, emabank.study.report.claim_specs, emabank.study.report.render_claims\n"
        f"assert 'numpy' in sys.modules and {module!r} not in sys.modules"
    )
    assert finished.returncode == 0, finished.stderr


def test_what_a_setting_lacks_is_never_an_error():
    bare = replace(setting(), variants={}, columns=[], choices=[])
    assert {found.verdict for found in make_claims(replace(results(bare), overheads=()))} == {"not run"}
    assert claim("2", results(replace(setting(), choices=[]))).verdict == "not run"
