"""The example of a transformers Trainer: it runs as it stands, learns, and its checkpoints hold the averages."""

import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: pip install emabank[transformers]")
EXAMPLE = Path(__file__).parents[2] / "examples" / "transformers_trainer.py"


def test_it_learns_advises_and_keeps_the_averages(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    example = runpy.run_path(str(EXAMPLE))
    averages = example["main"](str(tmp_path / "run"), steps=12)
    said = capsys.readouterr().out
    assert re.search(r"Ship \S+ of step \d", said)
    assert "epoch" not in said[said.index("Ship ") :]
    losses = [row.value for row in averages.tracker.history if row.average == "live" and row.metric == "eval_loss"]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    assert (tmp_path / "run" / "checkpoint-12" / "emabank.pt").exists()
