"""Calibration is that of the tuning models on test, with paired differences and what perfect calibration would be."""

from dataclasses import replace

import numpy as np

from emabank.study.report.tables.calibration import ece
from tests.study.report.made_evidence import made_evidence
from tests.study.report.tables.looking import at, is_mean_of, setting, whole, with_values

STAGE = ("80%", "test")


def test_values_are_those_of_the_models_trained_on_80_percent_measured_on_test():
    sgd, ema = [0.11, 0.12, 0.1], [0.06, 0.09, 0.07]
    one = with_values(setting(), {(*STAGE, "SGD", "ece"): sgd, (*STAGE, "slowest (loss)", "ece"): ema})
    (sheet,) = ece(made_evidence(one), "demo")
    assert is_mean_of(at(sheet, "ECE, %", "SGD"), sgd) and is_mean_of(at(sheet, "ECE, %", "EMA (loss)"), ema)
    assert is_mean_of(at(sheet, "ECE, %", "EMA − SGD, points"), np.subtract(ema, sgd).tolist())
    assert at(sheet, "ECE, %", "EMA (loss)").best and not at(sheet, "ECE, %", "SGD").best
    papers = [at(sheet, "ECE, %", column).paper for column in sheet.columns[1:]]
    assert papers == ["11.75 ± 0.76", "9.46 ± 0.26", "-2.29"]


def test_what_a_calibrated_model_would_have_stands_between_and_is_never_best():
    values = {(*STAGE, column, "ece_if_calibrated"): [0.01, 0.02, 0.03] for column in ("SGD", "slowest (loss)")}
    (sheet,) = ece(made_evidence(with_values(setting(), values)), "demo")
    assert [row for row, _ in sheet.rows] == ["accuracy, %", "ECE, %", "ECE if calibrated, %", "ECE with TS, %"]
    assert not any(cell.best for cell in sheet.rows[2][1])


def test_several_settings_have_rules_between_them_and_those_without_values_are_left_out():
    empty = replace(setting("cifar100-vgg16"), tables=[])
    made = ece(made_evidence(setting(), empty, setting("cifar10-resnet18")), "demo")
    assert len(made[0].rows) == 6 and made[0].breaks == [3] and whole(made)
    assert ece(made_evidence(empty), "demo") == []
