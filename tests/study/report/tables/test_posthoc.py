"""The table of windows: each at its best epoch, beside what was kept live at that epoch, and how far off it is."""

from dataclasses import replace

import numpy as np

from emabank.study.report.evidence import Curve
from emabank.study.report.tables.posthoc import windows
from tests.study.report.made_evidence import AVERAGES, made_evidence
from tests.study.report.tables.looking import at, first_seeds, is_mean_of, setting, whole


def test_each_window_stands_at_its_best_epoch_beside_what_was_kept():
    one = setting()
    (sheet,) = windows(made_evidence(one), "demo")
    assert [row for row, _ in sheet.rows] == ["0.44%", "0.88%", "1.8%", "3.5%", "7.1%", "10%", "14%"]
    assert whole([sheet])
    for row, _ in sheet.rows:
        curve = Curve(f"ema-{row}", "recomputed", "val", "accuracy")
        made = np.stack([run.posthoc[curve] for run in one.arms["posthoc"]])
        best = int(np.nanargmax(made.mean(axis=0)))
        assert at(sheet, row, "epoch").text == str(best + 1)
        assert is_mean_of(at(sheet, row, "afterwards, %"), made[:, best])
        error = [run.posthoc[curve._replace(metric="profile_error")][best] for run in one.arms["posthoc"]]
        assert is_mean_of(at(sheet, row, "profile error"), error, scale=1)
        if f"ema-{row}" in AVERAGES:
            kept = np.stack([run.curves[curve] for run in one.arms["posthoc"]])[:, best]
            assert is_mean_of(at(sheet, row, "kept live, %"), kept)
            assert is_mean_of(at(sheet, row, "difference, points"), made[:, best] - kept)
            off = Curve(f"ema-{row}", "averaged", "val", "weight_distance")
            assert is_mean_of(at(sheet, row, "weights off, %"), [r.posthoc[off][-1] for r in one.arms["posthoc"]])
        else:
            assert [at(sheet, row, column).text for column in ("kept live, %", "difference, points")] == ["–", "–"]


def test_one_seed_has_no_spread():
    (sheet,) = windows(made_evidence(first_seeds(setting(), 1)), "demo")
    assert all(cell.std is None for _, cells in sheet.rows for cell in cells)


def test_without_such_runs_there_is_no_table():
    assert windows(made_evidence(replace(setting(), arms={})), "demo") == []
    bare = tuple(replace(run, posthoc={}) for run in setting().arms["posthoc"])
    assert windows(made_evidence(replace(setting(), arms={"posthoc": bare})), "demo") == []
