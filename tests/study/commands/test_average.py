"""The command `average`: its arguments, its output, its exit codes."""

import sys
from pathlib import Path

import pytest
import torch

from emabank.averaging import ema_weights, last_weights, normalized_weights, uniform_weights
from emabank.rules import decay_merge_weights
from emabank.study.commands import main
from emabank.study.commands.average import AverageArguments
from tests.study.commands.parsing import error_of, parsed
from tests.support.files import assert_average, everything_in, mean, read, state, write
from tests.support.processes import run


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")  # so that the table does not wrap the long names of temporary folders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (50, 500, 1000):
        write(tmp_path / "kept" / f"step-{step}.safetensors", state(step))
    return tmp_path / "kept"


STATES = [state(step) for step in (50, 500, 1000)]


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ("", uniform_weights(3)),
        ("--decay 0.9", ema_weights(3, 0.9)),
        ("--last 2", last_weights(3, 2)),
        ("--weights 1 2 3", normalized_weights(3, [1, 2, 3])),
    ],
)
def test_every_kind_of_weights(folder: Path, options: str, weights: list[float], capsys: pytest.CaptureFixture[str]):
    out = folder.parent / "average.safetensors"
    assert main(["average", str(folder), "-o", str(out), *options.split()]) == 0
    assert_average(read(out), mean(STATES, weights))
    output = capsys.readouterr().out
    positions = [output.index(f"step-{step}.safetensors") for step in (50, 500, 1000)]
    assert positions == sorted(positions)
    assert all(f"{100 * weight:.4g}%" in output for weight in weights if weight)
    assert "5 averaged" in output and "1 copied from step-1000.safetensors" in output
    assert "norm.running_mean" in output and "recalibrate_batchnorm" in output
    assert "MB averaged: 1 of 1" in output and str(out) in output


@pytest.mark.parametrize(
    ("options", "steps", "weights"),
    [
        ("linear", (50, 500, 1000), decay_merge_weights([50, 500, 1000], "linear")),
        ("sqrt --window 500", (500, 1000), decay_merge_weights([500, 1000], "sqrt")),
        ("cosine --min-interval 600", (50, 1000), decay_merge_weights([50, 1000], "cosine")),
        ("sqrt --control reversed", (50, 500, 1000), decay_merge_weights([50, 500, 1000], "sqrt")[::-1]),
    ],
)
def test_weights_of_a_decay_merge(folder: Path, options: str, steps: tuple[int, ...], weights: list[float]):
    out = folder.parent / "average.safetensors"
    assert main(["average", str(folder), "-o", str(out), "--like-decay", *options.split()]) == 0
    assert_average(read(out), mean([state(step) for step in steps], weights))


def test_a_greedy_soup_is_scored_by_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for step, value in enumerate((3.0, -1.0, 0.5)):
        write(tmp_path / "kept" / f"step-{step}.safetensors", {"weight": torch.tensor([value])})
    script = tmp_path / "score.py"
    # The last four bytes of a file are its weight; importing torch would take seconds.
    script.write_text(
        "import struct, sys\nprint('score:', -abs(struct.unpack('<f', open(sys.argv[1], 'rb').read()[-4:])[0]))\n"
    )
    command = ["average", str(tmp_path / "kept"), "-o", str(tmp_path / "soup.safetensors"), "--greedy"]
    assert main([*command, f"{sys.executable} {script} {{}}"]) == 0
    assert read(tmp_path / "soup.safetensors")["weight"].tolist() == [-0.25]
    assert "the mean of 2" in capsys.readouterr().out
    for code in ("print('no score')", "raise SystemExit(3)"):
        script.write_text(code)
        assert main([*command, f"{sys.executable} {script} {{}}", "--force"]) == 1
        assert "greedy must be a command" in capsys.readouterr().err


def test_the_best_checkpoints_by_their_metric(tmp_path: Path):
    for epoch, metric in enumerate((0.7, 0.9, 0.8)):
        torch.save({"state_dict": state(epoch), "metric": metric}, tmp_path / f"checkpoint-{epoch}.pth.tar")
    assert main(["average", str(tmp_path), "-o", str(tmp_path / "average.pth"), "--best", "2"]) == 0
    assert_average(read(tmp_path / "average.pth")["state_dict"], mean([state(1), state(2)]))


def test_a_dry_run_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]):
    before = everything_in(folder.parent)
    assert main(["average", str(folder), "--dry-run"]) == 0
    assert "Peak memory: 13 MB" in capsys.readouterr().out
    assert main(["average", str(folder), "--dry-run", "--out", str(folder.parent / "average.safetensors")]) == 0
    assert everything_in(folder.parent) == before
    capsys.readouterr()
    write(folder / "step-2000.safetensors", {"other": torch.zeros(1)})
    assert main(["average", str(folder), "--dry-run"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("emabank: ") and "step-50.safetensors" in message and message.count("\n") == 1


def test_the_order_of_the_command_line_is_kept_and_mentioned(folder: Path, capsys: pytest.CaptureFixture[str]):
    paths = [str(folder / f"step-{step}.safetensors") for step in (1000, 50, 500)]
    out = folder.parent / "average.safetensors"
    assert main(["average", *paths, "--last", "1", "-o", str(out)]) == 0
    assert_average(read(out), state(500))
    assert "Checkpoints stay in your order" in capsys.readouterr().out
    for arguments in (["--last", "1", *paths[1:]], paths):  # sorted by number; a uniform mean
        assert main(["average", *arguments, "--dry-run"]) == 0
        assert "Checkpoints stay in your order" not in capsys.readouterr().out


def test_a_long_list_is_shortened_and_skipped_checkpoints_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for step in range(30):
        write(tmp_path / f"step-{step}.pt", {"weight": torch.ones(1)})
    write(tmp_path / "last.pt", {"weight": torch.ones(1)})
    assert main(["average", str(tmp_path), "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert "and 10 more" in output
    assert "step-9.pt" in output and "step-10.pt" not in output and "step-20.pt" in output
    assert f"Skipped: {tmp_path}/last.pt" in output


def test_warnings_name_the_tensor_and_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for step in (1, 2):
        content = {"state_dict": {"codes": torch.tensor([step]), "weight": torch.ones(1)}}
        content["state_dict_ema"] = content["state_dict"]  # timm loads it in preference
        torch.save(content, tmp_path / f"{step}.ckpt", _use_new_zipfile_serialization=step == 1)
    assert main(["average", str(tmp_path), "-o", str(tmp_path / "average.ckpt")]) == 0
    output = capsys.readouterr().out
    warnings = [line for line in output.splitlines() if line.startswith("Warning: ")]
    assert "'state_dict'" in output
    assert len(warnings) == 3 and "state_dict_ema" in warnings[0]
    assert "codes" in warnings[1] and "2.ckpt" in warnings[2]


def test_an_error_is_one_line_and_overwrites_no_file(folder: Path, capsys: pytest.CaptureFixture[str]):
    out = folder.parent / "average.safetensors"
    out.write_text("precious")
    for arguments, message in (
        ([str(folder), "-o", str(out)], str(out)),
        ([str(folder), "-o", str(out), "--dry-run"], str(out)),
        ([str(folder), "-o", str(out), "--last", "7"], "last must be from 1 to 3"),
        ([str(folder / "step-50.safetensors"), "--dry-run"], "two checkpoints or more"),
        ([str(folder / "step-51.safetensors"), "--dry-run"], "No such checkpoint"),
        ([str(folder), "-o", str(folder / "soup"), "--greedy", "score '{}"], "--greedy must be a command"),
    ):
        assert main(["average", *arguments]) == 1
        printed = capsys.readouterr().err
        assert printed.startswith("emabank: ") and printed.count("\n") == 1 and message in printed
    assert out.read_text() == "precious"
    assert main(["average", str(folder), "-o", str(out), "--force"]) == 0
    assert_average(read(out), mean(STATES))


def test_arguments_are_parsed_or_refused(capsys: pytest.CaptureFixture[str]):
    arguments = parsed("average", "a", "b", "-o", "c", "--weights", "1", "2", "--key", "ema")
    assert arguments == AverageArguments(
        checkpoints=(Path("a"), Path("b")), out=Path("c"), weights=(1.0, 2.0), key="ema"
    )
    for words, message in (
        (["--dry-run"], "checkpoints"),
        (["a"], "-o PATH"),
        (["a", "-o", "b", "--decay", "0.9", "--last", "3"], "--decay and --last"),
        (["a", "-o", "b", "--last", "0"], "last is 0"),
        (["a", "-o", "b", "--like-decay", "linear", "--best", "3"], "--like-decay and --best"),
        (["a", "-o", "b", "--window", "3"], "--like-decay"),
        (["a", "-o", "b", "--metric", "loss"], "--best"),
        (["a", "-o", "b", "--last", "3", "--lowest"], "--best"),
        (["a", "-o", "b", "--greedy", "validate"], "{} for the path"),
    ):
        assert message in error_of(capsys, "average", *words)


def test_average_runs_without_the_optional_packages(folder: Path):
    out = folder.parent / "average.safetensors"
    code = f"from emabank.study.commands import main\nsys.exit(main(['average', {str(folder)!r}, '-o', {str(out)!r}]))"
    process = run(code, blocked=("numpy", "pandas", "matplotlib", "safetensors", "jinja2", "PIL", "pooch"))
    assert process.returncode == 0, process.stderr
    assert_average(read(out), mean(STATES))
