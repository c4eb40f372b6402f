"""What is said beside a figure."""

import numpy as np

from emabank.study.report.figures.captions import figure_of, how, named, seeds_of, statistics
from emabank.study.report.panel import Line, Panel
from tests.study.report.made_evidence import made_setting


def panel(*counts: int) -> Panel:
    lines = [Line(label=str(n), x=np.arange(2), y=np.arange(2), n=n) for n in counts]
    return Panel(title="", lines=[*lines, Line(label="", x=np.arange(2), y=np.arange(2), kind="ideal")])


def test_the_number_of_seeds_is_said_and_an_ideal_line_does_not_count():
    assert (seeds_of([panel(3)]), seeds_of([panel(3), panel(2, 5)]), seeds_of([panel()])) == ("3", "2 to 5", "")
    assert how([panel(3)]).startswith("Bold: the mean of 3 seeds; thin: each seed.")
    assert how([panel(1)]).startswith("One seed. ")


def test_names_of_both_kinds_are_explained():
    assert "half-life is 7.1% of the run" in named(["ema-3.5%", "ema-7.1%"])
    assert "decay of 0.998 per update" in named(["ema-0.992", "ema-0.998"])


def test_statistics_are_spoken_of_where_there_are_any():
    assert statistics([made_setting(has_batchnorm=False)]) == ""
    assert "averaged" in statistics([made_setting()])


def test_a_stand_in_says_what_it_stands_for_and_the_papers_own_scale_has_none():
    for scale, count in (("demo", 1), ("small", 1), ("paper", 0)):
        setting = made_setting("cifar10-resnet18", scale=scale)
        (made,) = figure_of("dynamics/x", [setting], [panel(3)], scale=scale, title="", caption="", notes=["a note"])
        assert made.name == f"{scale}/dynamics/x" and made.study == "dynamics" and made.scale == scale
        assert made.notes[-1] == "a note" and len(made.notes) == count + 1
        assert all(setting.title in note and "CIFAR-10 with ResNet-18" in note for note in made.notes[:-1])
