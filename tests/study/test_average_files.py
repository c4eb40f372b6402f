"""The command `average`: what it is told, what it says, how it ends."""

from pathlib import Path

import pytest
import torch
from averaging.made import assert_same, everything_in, mean, read, state, write
from interpreter import run
from study.parsing import parsed, refused

from emabank.averaging import ema_shares, given_shares, last_shares
from emabank.cli import main
from emabank.study.own_arguments import AverageArguments


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")  # the temporary folder's name may be long, and a table breaks what is longer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (50, 500, 1000):
        write(tmp_path / "kept" / f"step-{step}.safetensors", state(step))
    return tmp_path / "kept"


STATES = [state(step) for step in (50, 500, 1000)]


@pytest.mark.parametrize(
    ("words", "shares"),
    [
        ("", [1 / 3] * 3),
        ("--decay 0.9", ema_shares(3, 0.9)),
        ("--last 2", last_shares(3, 2)),
        ("--weights 1 2 3", given_shares(3, [1, 2, 3])),
    ],
)
def test_every_way(folder: Path, words: str, shares: list[float], capsys: pytest.CaptureFixture[str]):
    out = folder.parent / "average.safetensors"
    assert main(["average", str(folder), "-o", str(out), *words.split()]) == 0
    assert_same(read(out), mean(STATES, shares))
    said = capsys.readouterr().out
    places = [said.index(f"step-{step}.safetensors") for step in (50, 500, 1000)]
    assert places == sorted(places), "the order is shown, by number"
    assert all(f"{100 * share:.4g}%" in said for share in shares if share)
    assert "Floating tensors, 5, are averaged in float64" in said and "other tensors, 1, come from step-1000" in said
    assert "2 of them are batch-norm statistics (norm.running_mean)" in said and "recalibrate_batchnorm" in said
    assert "MB averaged: 1 of 1" in said and f"Written: {out}" in said


def test_a_dry_run_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]):
    before = everything_in(folder.parent)
    assert main(["average", str(folder), "--dry-run"]) == 0
    assert main(["average", str(folder), "--dry-run", "--out", str(folder.parent / "average.safetensors")]) == 0
    assert capsys.readouterr().out.count("They fit together. Nothing was written.") == 2
    assert everything_in(folder.parent) == before
    write(folder / "step-2000.safetensors", {"other": torch.zeros(1)})
    assert main(["average", str(folder), "--dry-run"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("emabank: ") and "step-50.safetensors does not fit" in said and said.count("\n") == 1


def test_the_order_of_a_shell_is_kept_and_told(folder: Path, capsys: pytest.CaptureFixture[str]):
    paths = [str(folder / f"step-{step}.safetensors") for step in (1000, 50, 500)]
    out = folder.parent / "average.safetensors"
    assert main(["average", *paths, "--last", "1", "-o", str(out)]) == 0
    assert_same(read(out), state(500))
    assert "They stay in the order given, which is not that of their numbers" in capsys.readouterr().out
    for arguments in (["--last", "1", *paths[1:]], paths):  # in the order of their numbers; a plain mean
        assert main(["average", *arguments, "--dry-run"]) == 0
        assert "order given" not in capsys.readouterr().out


def test_long_sequences_are_shown_in_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for step in range(30):
        write(tmp_path / f"step-{step}.pt", {"weight": torch.ones(1)})
    write(tmp_path / "last.pt", {"weight": torch.ones(1)})
    assert main(["average", str(tmp_path), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "and 10 more" in said and "step-9.pt" in said and "step-10.pt" not in said and "step-20.pt" in said
    assert f"Left out: {tmp_path}/last.pt; without a number its place is unknown" in said


def test_what_is_to_mind_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for at in (1, 2):
        content = {"state_dict": {"codes": torch.tensor([at]), "weight": torch.ones(1)}}
        torch.save(content, tmp_path / f"{at}.ckpt", _use_new_zipfile_serialization=at == 1)
    assert main(["average", str(tmp_path), "-o", str(tmp_path / "average.ckpt")]) == 0
    said = capsys.readouterr().out
    assert "Floating tensors under 'state_dict', 1, are averaged" in said
    assert "whole numbers differ between the checkpoints (codes: 1); if they are quantised weights" in said
    assert "2.ckpt cannot be read in pieces" in said and "batch-norm" not in said


def test_failures_are_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]):
    out = folder.parent / "average.safetensors"
    out.write_text("precious")
    for words, said in (
        ([str(folder), "-o", str(out)], f"{out}: There is something already; give another name, or have it replaced"),
        ([str(folder), "-o", str(out), "--dry-run"], f"{out}: There is something already"),
        ([str(folder), "-o", str(out), "--last", "7"], "The last 7 of 3 checkpoints"),
        ([str(folder), "-o", str(out), "--weights", "1", "2"], "There are 2 weights for 3 checkpoints"),
        ([str(folder), "-o", str(out), "--decay", "1"], "A decay of 1.0"),
        ([str(folder / "step-50.safetensors"), "--dry-run"], "is the only checkpoint there; an average needs two"),
        ([str(folder / "step-51.safetensors"), "--dry-run"], "There is no such checkpoint"),
    ):
        assert main(["average", *words]) == 1
        told = capsys.readouterr().err
        assert told.startswith("emabank: ") and told.count("\n") == 1 and said in told
    assert out.read_text() == "precious"
    assert main(["average", str(folder), "-o", str(out), "--force"]) == 0
    assert_same(read(out), mean(STATES, [1 / 3] * 3))


def test_what_it_is_told():
    asked = parsed("average", "a", "b", "-o", "c", "--weights", "1", "2", "--key", "ema")
    assert asked == AverageArguments(checkpoints=(Path("a"), Path("b")), out=Path("c"), weights=(1.0, 2.0), key="ema")
    for words, said in (
        (["--dry-run"], "no checkpoints are named"),
        (["a"], "it is not said where the average goes; give -o and a name"),
        (["a", "-o", "b", "--decay", "0.9", "--last", "3"], "decay and last are both given; choose one"),
        (["a", "-o", "b", "--last", "0"], "last is 0; give 1 or more"),
    ):
        assert said in refused("average", *words)


def test_it_needs_only_what_the_command_line_needs(folder: Path):
    out = folder.parent / "average.safetensors"
    code = f"from emabank.cli import main\nsys.exit(main(['average', {str(folder)!r}, '-o', {str(out)!r}]))"
    done = run(code, blocked=("numpy", "pandas", "matplotlib", "safetensors", "jinja2", "PIL", "pooch"))
    assert done.returncode == 0, done.stderr
    assert_same(read(out), mean(STATES, [1 / 3] * 3))
