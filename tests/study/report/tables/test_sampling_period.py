"""Decays by arithmetic done another way, accuracy by period in pairs, and the cost of averages as it was measured."""

import math
from dataclasses import replace

import numpy as np
import pytest

from emabank.study.report.evidence import Evidence, Overhead
from emabank.study.report.tables.sampling_period import accuracy, equivalence, overhead
from tests.study.report.made_evidence import made_evidence, made_runs
from tests.study.report.tables.looking import at, is_mean_of, setting, whole


def test_equal_horizons_forget_equally_much_over_the_same_number_of_steps():
    (sheet,) = equivalence()
    for row, cells in sheet.rows:
        left = [float(cell.text) ** (64 // period) for cell, period in zip(cells, (1, 4, 16, 64), strict=False)]
        assert left == pytest.approx([float(row) ** 4] * 4, rel=1e-4)
        half_life = float(cells[4].text)
        assert float(row) ** (half_life / 16) == pytest.approx(0.5, abs=1e-4)
    assert [row for row, _ in sheet.rows] == ["0.998", "0.996", "0.992", "0.984", "0.968"] and whole([sheet])


def test_the_papers_equivalents_are_ours_rounded():
    (sheet,) = equivalence()
    for row in ("0.998", "0.996", "0.992", "0.984", "0.968"):
        ours, paper = at(sheet, row, "T = 1").text, at(sheet, row, "T = 1").paper
        assert round(float(ours), len(paper) - 2) == float(paper)
        assert (
            at(sheet, row, "T = 16").text == at(sheet, row, "T = 16").paper == row
            and at(sheet, row, "T = 4").paper == ""
        )


def test_periods_are_compared_with_the_shortest_by_seed():
    gains = {"every 4": 0.05, "every 16": 0.02, "every 1": 0.01}
    one = replace(setting(), arms={arm: made_runs(arm, gain=gain) for arm, gain in gains.items()})
    (sheet,) = accuracy(made_evidence(one), "demo")
    assert [row for row, _ in sheet.rows] == ["T = 1", "T = 4", "T = 16"] and whole([sheet])
    best = {arm: one.best_average(arm, "test") for arm in one.arms}
    peaks = {arm: found.max(axis=1) for arm, found in best.items() if found is not None}
    assert is_mean_of(at(sheet, "T = 16", "peak, %", "best average"), peaks["every 16"].tolist())
    minus = "best, minus the shortest T"
    assert is_mean_of(at(sheet, "T = 16", "peak", minus), (peaks["every 16"] - peaks["every 1"]).tolist())
    chosen = [found[:, 24] for found in (best["every 4"], best["every 1"]) if found is not None]
    assert is_mean_of(at(sheet, "T = 4", "chosen", minus), np.subtract(*chosen).tolist())
    assert at(sheet, "T = 1", "peak", minus).text == "–"


def test_one_period_alone_is_no_comparison():
    one = setting()
    assert accuracy(made_evidence(replace(one, arms={"every 1": one.arms["every 1"]})), "demo") == []
    assert accuracy(made_evidence(replace(one, arms={"every 1": (), "every 2": ()})), "demo") == []


def test_the_share_of_a_step_is_that_of_an_update_among_all_steps_to_the_next():
    made = Overhead(network="net", parameters=1_000_000, averages=5, every=16, step_seconds=(0.1, 0.2, 0.1),
                    update_seconds=(0.016, 0.016, 0.032), bytes=5 * 4_000_000)  # fmt: skip
    (sheet,) = overhead(Evidence(overheads=(made,)))
    assert is_mean_of(at(sheet, "net", "share of a step, %"), [0.01, 0.005, 0.02])
    assert is_mean_of(at(sheet, "net", "update, ms"), [16, 16, 32], scale=1) and whole([sheet])
    assert at(sheet, "net", "MiB an average").text == f"{4_000_000 / 1024 / 1024:.2f}" == "3.81"


def test_the_papers_resnet_50_has_a_line_of_its_own_that_fits_its_parameters():
    (sheet,) = overhead(made_evidence(setting()))
    assert at(sheet, "ResNet-50, paper", "MiB an average").text == "90.43"
    assert math.isclose(90.43 * 2**20 / 4, 23.7e6, rel_tol=1e-3)
    assert at(sheet, "ResNet-50, paper", "parameters").text == "23.7M"


def test_unequal_repetitions_have_no_share_and_no_overhead_no_table():
    made = Overhead(network="net", parameters=1, averages=1, every=1, step_seconds=(0.1,), update_seconds=(), bytes=4)
    (sheet,) = overhead(Evidence(overheads=(made,)))
    assert at(sheet, "net", "share of a step, %").text == "–" == at(sheet, "net", "update, ms").text
    assert overhead(Evidence()) == []
