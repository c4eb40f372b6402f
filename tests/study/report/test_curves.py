"""What is read off the curves, by hand; and table, figure and claim say the same number of the same rows."""

from dataclasses import replace

import numpy as np
import pytest

from emabank.study.report.claims.all import claims
from emabank.study.report.curves import copied_back, first_quarter, on_train, when_reached
from emabank.study.report.evidence import LIVE, Curve
from emabank.study.report.figures import label_noise as figures
from emabank.study.report.figures.training import bootstrap as bootstrap_figure
from emabank.study.report.tables import label_noise as tables
from emabank.study.report.tables.training import bootstrap as bootstrap_table
from tests.study.report.claims.shapes import by_hand
from tests.study.report.made_evidence import made_evidence
from tests.study.report.tables.looking import at, setting

NAN = float("nan")
# Three seeds whose clean accuracy jumps over 90%: between two epochs one could read off anything.
CURVES = {
    (LIVE, "own", "train", "clean_accuracy"): [[0.5, 0.8, 0.96, 1.0], [0.7, 0.92, 0.95, 1.0], [0.6, 0.7, 0.9, 1.0]],
    (LIVE, "own", "train", "memorised"): [[0.1, 0.4, 0.9, 1.0], [0.3, 0.7, 0.9, 1.0], [0.2, 0.5, 0.8, 1.0]],
    ("b", "averaged", "train", "clean_accuracy"): [[0.95, 1.0, 1.0, 1.0]] * 3,
    ("b", "averaged", "train", "memorised"): [[0.99, 1.0, 1.0, 1.0]] * 3,
    ("b", "recomputed", "train", "clean_accuracy"): [[0.6, 0.91, 1.0, 1.0], [0.6, 0.9, 1.0, 1.0], [0.8, 0.85, 0.99, 1]],
    ("b", "recomputed", "train", "memorised"): [[0.1, 0.3, 0.6, 1.0], [0.1, 0.2, 0.6, 1.0], [0.1, 0.2, 0.6, 1.0]],
}
SGD, EMA = [0.9, 0.7, 0.8], [0.3, 0.2, 0.6]  # at epochs 3, 2, 3 and 2, 2, 3, read off by hand


def test_the_first_measured_epoch_that_reaches_the_level_counts_and_nothing_between():
    assert when_reached(np.array([0.5, 0.8, 1.0]), np.array([0.0, 0.1, 0.2])) == (3, 1.0, 0.2)
    assert when_reached(np.array([0.95, 0.8]), np.array([0.3, 0.4])) == (1, 0.95, 0.3)
    assert when_reached(np.array([0.8, 0.9, 0.7]), np.array([0.1, 0.3, 0.9])) == (2, 0.9, 0.3)
    assert when_reached(np.array([0.8, 0.9, 0.7]), np.array([0.1, 0.3, 0.9]), 0.75) == (1, 0.8, 0.1)
    assert when_reached(np.array([NAN, 0.8, 0.95, 1.0]), np.array([0.9, 0.1, NAN, 0.2])) == (4, 1.0, 0.2)
    assert when_reached(np.array([0.8, 0.89]), np.array([0.1, 0.3])) is None
    assert when_reached(np.array([]), np.array([])) is None


def test_table_figure_and_claim_say_the_same_number():
    one = by_hand(CURVES)
    evidence = made_evidence(one)
    (part,) = [part for part in claims(evidence)[5].parts if "memorised" in part.statistic and part.n]
    (sheet,) = tables.memorisation(evidence, "demo")
    (figure,) = figures.memorisation(evidence, "demo")
    differences = 100 * np.subtract(EMA, SGD)
    assert part.values == pytest.approx(differences)
    cell = at(sheet, "90%", "memorised, points")
    assert (cell.mean, cell.std) == (pytest.approx(differences.mean()), pytest.approx(differences.std(ddof=1)))
    (x_live, live, live_label), (x, average, label) = figure.panels[0].marks
    assert (live, average) == (pytest.approx(100 * np.mean(SGD)), pytest.approx(100 * np.mean(EMA)))
    assert (x_live, x) == (pytest.approx(8 / 3), pytest.approx(7 / 3))
    for group, words in (("SGD", live_label), ("EMA, slowest", label)):
        found = at(sheet, "90%", "memorised, %", group)
        assert f"{found.mean:.1f} ± {found.std:.1f}% (n = 3) memorised" in words


def test_curves_on_train_have_the_statistics_that_they_say():
    one = by_hand(CURVES)
    found = on_train(one, "b")
    assert found is not None and found.batchnorm == "recomputed"
    np.testing.assert_array_equal(found.memorised, CURVES["b", "recomputed", "train", "memorised"])
    some = by_hand({key: found for key, found in CURVES.items() if key[1] != "recomputed"})
    assert on_train(some, "b").batchnorm == "averaged" and on_train(some, LIVE).batchnorm == "own"
    assert on_train(some, "a") is None


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("place", [0, -1])
def test_the_average_that_was_copied_back_is_the_one_that_the_run_names(count, place):
    one = setting()
    averages = one.averages[:count]
    runs = tuple(replace(run, copied_back=averages[place]) for run in one.arms["bootstrap"])
    one = replace(one, averages=averages, arms={**one.arms, "bootstrap": runs})
    assert copied_back(one) == averages[place]
    (figure,) = bootstrap_figure(made_evidence(one), "demo")
    (sheet,) = bootstrap_table(made_evidence(one), "demo")
    assert [line.label for line in figure.panels[0].lines][1::2] == [
        f"plain: {averages[place]}", f"bootstrapped: {averages[place]}",
    ]  # fmt: skip
    assert f"{averages[place]} is the average" in figure.caption
    copied = one.curves("bootstrap", Curve(averages[place], "averaged", "val", "accuracy"))
    assert at(sheet, "EMA, bootstrapped", "end, %").mean == pytest.approx(100 * copied[:, -1].mean())
    assert any(averages[place] in note for note in sheet.notes)


def test_without_runs_that_copy_an_average_back_there_is_none_to_name():
    one = setting()
    assert copied_back(replace(one, arms={})) is None
    assert copied_back(replace(one, arms={"bootstrap": one.arms["tune"]})) is None


def test_a_quarter_is_rounded_down_but_not_to_nothing():
    assert [first_quarter(epochs) for epochs in (1, 3, 7, 8, 30, 200)] == [1, 1, 1, 2, 7, 50]
