"""Every figure there is, under its name; none where nothing was run; no torch and no window system to make them."""

import json
from dataclasses import replace

import pytest

from emabank.study.report.evidence import Evidence
from emabank.study.report.figures.all import figures
from tests.study.report.made_evidence import ARMS, PAIRS, RATES, made_evidence, made_setting
from tests.support.processes import run

NAMES = {
    *(f"dynamics/{pair}" for pair in PAIRS), "dynamics/early", "batchnorm/decays", "batchnorm/heatmap",
    "label-noise/accuracy", "label-noise/memorisation", "constant-lr/accuracy", "step-decay/accuracy",
    "bootstrap/accuracy", "lr-search/curves", "calibration/reliability", "sampling-period/accuracy",
    "posthoc/heatmap",
}  # fmt: skip
NEEDED = {
    "constant-lr/accuracy": ("refit", "constant"), "step-decay/accuracy": ("step",), "lr-search/curves": (),
    "bootstrap/accuracy": ("tune", "bootstrap"), "calibration/reliability": ("tune",), "sampling-period/accuracy": (),
    "posthoc/heatmap": ("posthoc",),
}  # fmt: skip
"""The arms without which there is no figure; elsewhere the refits."""
ITEMS = ["1a", "1b", "2", "3", "4a", "4b", "4c", "4d", "4e", "5", "6", "7", "8", "9"]

EVIDENCE = made_evidence()
MADE = figures(EVIDENCE)


def test_whole_evidence_makes_every_figure_once():
    assert sorted(figure.name for figure in MADE) == sorted(f"demo/{name}" for name in NAMES)


def test_every_figure_of_the_paper_has_a_counterpart():
    found = [item for figure in MADE for item in figure.item.split(", ") if item]
    assert sorted(found) == [f"Figure {number}" for number in ITEMS]


def test_every_figure_is_whole():
    for figure in MADE:
        assert figure.title and figure.caption and figure.notes and figure.name.startswith(f"demo/{figure.study}/")
        for panel in figure.panels:
            labels = [line.label for line in panel.lines]
            assert len(set(labels)) == len(labels) and (labels or panel.grid is not None)


def test_an_oracles_choice_is_called_so():
    for figure in MADE:
        if any("chosen on test" in line.label for panel in figure.panels for line in panel.lines):
            assert "an oracle's choice" in figure.caption


def test_scales_come_largest_first():
    evidence = made_evidence(*(made_setting(scale=scale) for scale in ("demo", "paper", "small")))
    scales = [figure.scale for figure in figures(evidence)]
    assert list(dict.fromkeys(scales)) == ["paper", "small", "demo"]
    assert len(scales) == 3 * scales.count("demo")


def test_nothing_run_makes_nothing():
    assert figures(Evidence()) == []
    empty = dict.fromkeys((*ARMS, *(f"tune at {rate:g}" for rate in RATES)), ())
    assert figures(made_evidence(made_setting(arms=empty))) == []


@pytest.mark.parametrize("arm", ARMS)
def test_a_missing_arm_costs_the_figures_that_need_it_and_no_other(arm):
    settings = [replace(setting, arms={**setting.arms, arm: ()}) for setting in EVIDENCE.settings]
    left = {figure.name.removeprefix("demo/") for figure in figures(made_evidence(*settings))}
    assert left == {name for name in NAMES if arm not in NEEDED.get(name, ("refit",))}


def test_making_and_drawing_load_neither_torch_nor_pyplot():
    code = "import json, sys, emabank.study.report.figures.all, emabank.study.report.figures.draw"
    finished = run(f"{code}\nprint(json.dumps(sorted(sys.modules)))")
    assert finished.returncode == 0, finished.stderr
    loaded = set(json.loads(finished.stdout))
    assert "matplotlib.figure" in loaded and not loaded & {"torch", "matplotlib.pyplot"}
