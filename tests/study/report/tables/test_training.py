"""Constant rate, step decay and bootstrap: peak, end and their difference of each seed, and paired between branches."""

from dataclasses import replace

import numpy as np

from emabank.study.report.evidence import LIVE, Curve, Setting
from emabank.study.report.tables.training import bootstrap, constant_rate, step_decay
from tests.study.report.made_evidence import made_evidence
from tests.study.report.tables.looking import at, is_mean_of, setting, whole


def curves(one: Setting, arm: str, weights: str, split: str) -> np.ndarray:
    """[seeds, epochs]; of "best", the highest of all averages at each epoch."""
    names = one.averages if weights == "best" else (weights,)
    statistics = "own" if weights == LIVE else "averaged"
    found = [[run.curves[Curve(name, statistics, split, "accuracy")] for name in names] for run in one.arms[arm]]
    return np.array([[max(values) for values in zip(*curves, strict=True)] for curves in found])


def test_both_branches_have_peak_end_and_what_lies_between_for_both_weights():
    one = setting("cifar100n-resnet18")
    (sheet,) = constant_rate(made_evidence(one), "demo")
    for rate, arm in (("cosine", "refit"), ("constant", "constant")):
        for title, weights in (("SGD", LIVE), ("EMA", "best")):
            found = curves(one, arm, weights, "test")
            row = f"{rate}, {title}"
            assert is_mean_of(at(sheet, row, "peak, %"), found.max(axis=1).tolist())
            assert is_mean_of(at(sheet, row, "epoch"), (found.argmax(axis=1) + 1).tolist(), scale=1)
            assert is_mean_of(at(sheet, row, "end, %"), found[:, -1].tolist())
            assert is_mean_of(at(sheet, row, "end − peak"), (found[:, -1] - found.max(axis=1)).tolist())
    ends = curves(one, "constant", "best", "test")[:, -1] - curves(one, "refit", "best", "test")[:, -1]
    assert is_mean_of(at(sheet, "EMA, constant − cosine", "end, %"), ends.tolist())
    assert whole([sheet]) and any(note.startswith("oracle") for note in sheet.notes) and "(oracle)" in sheet.caption


def test_step_decay_compares_the_weights_at_the_end():
    one = setting()
    (sheet,) = step_decay(made_evidence(one), "demo")
    minus = curves(one, "step", "best", "test")[:, -1] - curves(one, "step", LIVE, "test")[:, -1]
    assert is_mean_of(at(sheet, "EMA − SGD", "end, %"), minus.tolist()) and whole([sheet])


def test_bootstrap_is_held_against_tuning_on_validation_with_the_average_in_the_middle():
    one = setting()
    (sheet,) = bootstrap(made_evidence(one), "demo")
    middle = one.averages[2]
    for title, weights in (("SGD", LIVE), ("EMA", middle)):
        plain, copied = (curves(one, arm, weights, "val") for arm in ("tune", "bootstrap"))
        assert is_mean_of(at(sheet, title, "end, %"), plain[:, -1].tolist())
        assert is_mean_of(at(sheet, f"{title}, bootstrapped", "peak, %"), copied.max(axis=1).tolist())
        assert is_mean_of(at(sheet, f"{title}, difference", "end, %"), (copied - plain)[:, -1].tolist())
    assert (at(sheet, "SGD", "end, %").paper, at(sheet, "SGD, bootstrapped", "end, %").paper) == ("75.83", "74.47")
    assert "oracle" not in sheet.caption


def test_several_settings_are_told_apart_and_ruled_off():
    made = step_decay(made_evidence(setting(), setting("cifar10-resnet18")), "demo")
    assert len(made[0].rows) == 6 and made[0].breaks == [3] and whole(made)


def test_arms_that_are_missing_or_not_measured_make_no_table():
    for one in (replace(setting(), arms={}), replace(setting(), arms={"constant": (), "step": (), "bootstrap": ()})):
        assert constant_rate(made_evidence(one), "demo") == step_decay(made_evidence(one), "demo") == []
        assert bootstrap(made_evidence(one), "demo") == []
    runs = tuple(replace(run, curves={}) for run in setting().arms["step"])
    assert step_decay(made_evidence(replace(setting(), arms={"step": runs})), "demo") == []


def test_a_branch_with_fewer_seeds_is_compared_over_those_it_has():
    one = setting()
    (sheet,) = constant_rate(
        made_evidence(replace(one, arms={**one.arms, "constant": one.arms["constant"][1:]})), "demo"
    )
    assert at(sheet, "SGD, constant − cosine", "end, %").n == 2 and at(sheet, "cosine, SGD", "end, %").n == 3
