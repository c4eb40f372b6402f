"""The example of a model of one's own: it runs as it stands, and what it says is what the rows say."""

import runpy
from pathlib import Path

import pytest

from emabank.study import load_results

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model.py"


def test_it_runs_and_the_weights_it_loads_have_the_accuracy_of_their_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    example = runpy.run_path(str(EXAMPLE))
    example["main"](str(tmp_path))
    *_, last = capsys.readouterr().out.splitlines()
    average, epoch = last.removeprefix("seed 0 ships ").partition(":")[0].split(" of epoch ")
    rows = load_results(tmp_path)
    chosen = rows[(rows.trained_on == "100%") & (rows.seed == 0) & (rows.selected_by == "accuracy")]
    [value] = chosen[
        (chosen.weights == average) & (chosen.batchnorm == "averaged") & (chosen.split == "test")
        & (chosen.metric == "accuracy") & (chosen.epoch == int(epoch))
    ].value  # fmt: skip
    assert last == f"seed 0 ships {average} of epoch {epoch}: {value:.1%} on the test images"
    assert value > 0.6
