"""The simulation behind docs/how.md: its truth is what it says, it counts both ways, the page shows what was kept."""

import re
from pathlib import Path

import pytest
import torch
from advice import Case, main, measure, noise_map, read, simulate, table, true_accuracies

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("curves", ["flat", "rising", "one live"])
@pytest.mark.parametrize("candidates", ["alike", "independent"])
def test_simulated_accuracies_are_the_true_ones(curves, candidates):
    case = Case(100_000, 2, gain=0.01, curves=curves, candidates=candidates, epochs=3)
    values = simulate(case, noise_map(case), torch.Generator().manual_seed(0))
    assert torch.allclose(values.mean(2), true_accuracies(case), atol=0.005)
    assert (true_accuracies(case)[1:, -1] - true_accuracies(case)[0, -1]).tolist() == pytest.approx([0.01, 0.01])


def test_gains_are_found_where_they_are_and_not_where_they_are_not():
    found = measure(Case(2_000, 2, gain=0.05, epochs=3), repeats=20, seed=0)
    assert found.paired == 1.0
    assert found.chosen_before == 1.0
    nothing = measure(Case(500, 2, epochs=3), repeats=40, seed=0)
    assert nothing.paired <= 0.15
    assert nothing.unpaired == 0.0
    assert measure(Case(500, 1, epochs=2, metric="loss"), repeats=2, seed=0).unpaired is None


def test_the_page_shows_what_was_kept_and_the_rates_are_below_five_percent():
    results = read(ROOT / "benchmarks/results/advice.json")
    shown = re.search(r"<!-- made by benchmarks/advice.py -->\n\n(.*?)\n\n<!-- end -->", page(), re.DOTALL)
    assert shown and shown[1] == table(results)
    for result in results:
        if result.case.gain == 0.0:
            assert max(result.paired, result.unpaired or 0.0) <= 0.05, result


def page() -> str:
    return (ROOT / "docs/how.md").read_text()


def test_help_helps(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--repeats" in capsys.readouterr().out
