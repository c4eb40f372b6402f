"""The paper's Figures 2 and 7: accuracy under wrong labels, and what is memorised of them."""

from dataclasses import replace

import numpy as np
import pytest

from emabank.study.report.curves import OnTrain
from emabank.study.report.evidence import LIVE, Curve
from emabank.study.report.figures.label_noise import accuracy, memorisation, reached_mark
from tests.study.report.made_evidence import AVERAGES, made_evidence, made_setting

PAIRS = ("cifar100n-resnet34", "cifar10n-resnet34")
EVIDENCE = made_evidence(*(made_setting(pair) for pair in reversed(PAIRS)))


def test_accuracy_is_that_of_the_live_weights_and_the_slowest_average_the_papers_pair_first():
    (figure,) = accuracy(EVIDENCE, "demo")
    assert figure.item == "Figure 2" and figure.name == "demo/label-noise/accuracy"
    assert [panel.title for panel in figure.panels] == [made_setting(pair).title for pair in PAIRS]
    setting, panel = made_setting(PAIRS[0]), figure.panels[0]
    for line, key in zip(panel.lines, ((LIVE, "own"), (AVERAGES[-1], "recomputed")), strict=True):
        curves = setting.curves("refit", Curve(*key, "test", "accuracy"))
        np.testing.assert_allclose(line.y, 100 * curves.mean(axis=0))
    assert panel.lines[1].label == f"{AVERAGES[-1]}, recomputed statistics"
    assert panel.rate is not None


@pytest.mark.parametrize("batchnorm", ["recomputed", "averaged"])
def test_the_points_are_on_the_curves_that_are_drawn_each_where_validation_chose_it(batchnorm):
    setting = made_setting(PAIRS[0])
    runs = tuple(replace(run, curves={key: y for key, y in run.curves.items() if key.batchnorm in ("own", batchnorm)})
                 for run in setting.arms["refit"])  # fmt: skip
    choices = [{**choice, "live_epoch": 30 + choice["seed"]} for choice in setting.choices]
    setting = replace(setting, choices=choices, arms={**setting.arms, "refit": runs})
    (figure,) = accuracy(made_evidence(setting), "demo")
    live = setting.curves("refit", Curve(LIVE, "own", "test", "accuracy"))
    slowest = setting.curves("refit", Curve(AVERAGES[-1], batchnorm, "test", "accuracy"))
    (x_live, y_live, _), (x, y, label) = figure.panels[0].marks
    assert (x_live, y_live) == (31.0, pytest.approx(100 * np.mean([live[i, 29 + i] for i in range(3)])))
    assert (x, y) == (25.0, pytest.approx(100 * slowest[:, 24].mean()))
    assert AVERAGES[-1] in label and f"{batchnorm} statistics" in figure.panels[0].lines[1].label


def test_a_network_without_batch_norm_has_no_statistics_to_speak_of():
    plain = made_setting(PAIRS[0], has_batchnorm=False)
    (figure,) = accuracy(made_evidence(plain), "demo")
    assert figure.panels[0].lines[1].label == AVERAGES[-1]


def test_memorised_and_clean_are_there_for_both():
    (figure,) = memorisation(EVIDENCE, "demo")
    setting, panel = made_setting(PAIRS[0]), figure.panels[0]
    expected = [
        (f"{words}: {short}", Curve(weights, batchnorm, "train", metric), dashed)
        for weights, words, batchnorm in (
            (LIVE, "live weights", "own"),
            (AVERAGES[-1], f"{AVERAGES[-1]}, averaged statistics", "averaged"),
        )
        for short, metric, dashed in (("memorised", "memorised", False), ("clean", "clean_accuracy", True))
    ]
    for line, (label, curve, dashed) in zip(panel.lines, expected, strict=True):
        np.testing.assert_allclose(line.y, 100 * setting.curves("refit", curve).mean(axis=0))
        assert (line.label, line.dashed) == (label, dashed)
    assert figure.item == "Figure 7" and len(panel.marks) == 2


def test_the_marks_are_where_each_seeds_clean_accuracy_first_reaches_ninety_percent():
    setting = made_setting(PAIRS[0])
    (figure,) = memorisation(made_evidence(setting), "demo")
    for (x, y, label), key in zip(figure.panels[0].marks, ((LIVE, "own"), (AVERAGES[-1], "averaged")), strict=True):
        epochs, shares = [], []
        for run in setting.arms["refit"]:
            clean = run.curves[Curve(*key, "train", "clean_accuracy")]
            epoch = next(i for i, value in enumerate(clean) if value >= 0.9)
            epochs.append(epoch + 1)
            shares.append(run.curves[Curve(*key, "train", "memorised")][epoch])
        assert (x, y) == (pytest.approx(np.mean(epochs)), pytest.approx(100 * np.mean(shares)))
        assert f"{100 * np.mean(shares):.1f} ± {100 * np.std(shares, ddof=1):.1f}% (n = 3) memorised" in label


def test_no_mark_unless_every_seed_reaches_it():
    def mark(clean: list[list[float]], memorised: float = 0.25):
        return reached_mark(OnTrain(np.array(clean), np.full((len(clean), len(clean[0])), memorised), "own"), "live")

    assert mark([[0.5, 0.9, 0.95], [0.5, 0.8, 0.85]]) == []
    assert mark([[0.5, 0.9, 0.95], [0.5, np.nan, 0.9]])[0][0] == 2.5
    assert mark([[0.95]], memorised=np.nan) == []


def test_without_curves_there_is_no_figure():
    def cut(setting, split):
        runs = tuple(replace(run, curves={key: y for key, y in run.curves.items() if key.split != split})
                     for run in setting.arms["refit"])  # fmt: skip
        return made_evidence(replace(setting, arms={**setting.arms, "refit": runs}))

    setting = made_setting(PAIRS[0])
    assert accuracy(cut(setting, "test"), "demo") == [] and memorisation(cut(setting, "train"), "demo") == []
    assert len(accuracy(cut(setting, "train"), "demo")) == len(memorisation(cut(setting, "test"), "demo")) == 1
    assert accuracy(made_evidence(made_setting()), "demo") == []
