"""The example of a character-level transformer: it learns, its averages are told apart, and tied weights stay tied."""

import runpy
from pathlib import Path

import pytest

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "char_transformer.py"))


def test_it_learns_and_advises(capsys: pytest.CaptureFixture[str]):
    EXAMPLE["main"](steps=40, every=8)
    *lines, advice = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    losses = [[float(word) for word in line.split()[2::2]] for line in lines]
    assert all(len(each) == 4 for each in losses), "the live weights and three averages"
    assert losses[-1][0] < losses[0][0], "it learns"
    assert losses[-1][3] > losses[-1][0], "after so few steps the slowest average lags behind"
    assert advice.startswith("Ship ")


def test_output_and_embedding_share_their_weights():
    model = EXAMPLE["CharTransformer"](20)
    assert model.head.weight is model.embed.weight
