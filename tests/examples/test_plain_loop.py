"""The example of a plain loop: it runs as it stands, and what it saves is a model as good as it says."""

import runpy
from pathlib import Path

import pytest
import torch

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "plain_loop.py"))


def test_it_saves_the_weights_it_advises_to_ship(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "best.pt"
    EXAMPLE["main"](str(out), epochs=4)
    said = capsys.readouterr().out
    assert said.startswith("Ship ")
    model = EXAMPLE["make_model"]()
    model.load_state_dict(torch.load(out, weights_only=True))
    images, labels = EXAMPLE["data"]()[1]
    with torch.no_grad():
        accuracy = float((model.eval()(images).argmax(1) == labels).float().mean())
    assert f"{100 * accuracy:.2f} %" in said
    assert accuracy > 0.5
