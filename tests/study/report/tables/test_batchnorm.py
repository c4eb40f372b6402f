"""The sensitivity table: what an oracle reads off the test curve, beside the epoch that validation chose."""

from dataclasses import replace

from emabank.study.report.evidence import Curve
from emabank.study.report.tables.batchnorm import sensitivity
from tests.study.report.made_evidence import made_evidence
from tests.study.report.tables.looking import at, is_mean_of, setting, whole


def test_each_average_has_its_peak_as_an_oracle_sees_it_and_its_value_at_the_chosen_epoch():
    one = setting()
    choices = [{**c, "averages": {"accuracy": ("ema-1.8%", 20 + c["seed"])}} for c in one.choices]
    (sheet,) = sensitivity(made_evidence(replace(one, choices=choices)), "demo")
    assert [row for row, _ in sheet.rows] == ["0.44%", "0.88%", "1.8%", "3.5%", "7.1%"] and whole([sheet])
    for name in one.averages:
        row = name.removeprefix("ema-")
        for statistics in ("recomputed", "averaged"):
            curves = [run.curves[Curve(name, statistics, "test", "accuracy")] for run in one.arms["refit"]]
            assert is_mean_of(at(sheet, row, "best, %", f"{statistics}, oracle"), [max(curve) for curve in curves])
            epochs = [curve.tolist().index(max(curve)) + 1 for curve in curves]
            assert is_mean_of(at(sheet, row, "epoch", f"{statistics}, oracle"), epochs, scale=1)
            chosen = [curve[19 + seed] for seed, curve in enumerate(curves)]
            assert is_mean_of(at(sheet, row, "accuracy, %", f"{statistics}, chosen"), chosen)


def test_the_papers_decays_stand_for_ours_in_their_order():
    (sheet,) = sensitivity(made_evidence(setting()), "demo")
    assert at(sheet, "0.44%", "best, %", "recomputed, oracle").paper == "78.04 ± 0.19"
    assert at(sheet, "7.1%", "epoch", "recomputed, oracle").paper == "166"
    fewer = replace(setting(), averages=setting().averages[:2])
    assert not any(cell.paper for _, cells in sensitivity(made_evidence(fewer), "demo")[0].rows for cell in cells)
    (other,) = sensitivity(made_evidence(setting("cifar10-resnet18")), "demo")
    assert not any(cell.paper for _, cells in other.rows for cell in cells)


def test_the_word_oracle_stands_over_what_was_read_off_the_test_curve():
    (sheet,) = sensitivity(made_evidence(setting()), "demo")
    assert [title for title, _ in sheet.groups] == [
        "", "recomputed, oracle", "recomputed, chosen", "averaged, oracle", "averaged, chosen",
    ]  # fmt: skip


def test_without_recomputed_curves_there_is_no_table():
    one = setting()
    runs = tuple(
        replace(run, curves={key: found for key, found in run.curves.items() if key.batchnorm != "recomputed"})
        for run in one.arms["refit"]
    )
    assert sensitivity(made_evidence(replace(one, arms={"refit": runs})), "demo") == []
    assert sensitivity(made_evidence(replace(one, arms={})), "demo") == []
