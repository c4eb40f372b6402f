"""The examples run unchanged, and what they print and save is right."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from emabank.study import load_results
from emabank.study.data.digits import digits_dataset
from tests.support.processes import SOURCE

FOLDER = Path(__file__).parents[1] / "examples"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / f"{name}.py"))


def accuracy(model: nn.Module, file: Path, images: Tensor, labels: Tensor) -> float:
    """Accuracy of the weights that an example saved."""
    model.load_state_dict(torch.load(file, weights_only=True))
    with torch.no_grad():
        return float((model.eval()(images).argmax(1) == labels).float().mean())


def test_plain_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = example("plain_loop")
    module["main"](str(tmp_path / "best.pt"), epochs=4)
    output = capsys.readouterr().out
    assert output.startswith("Ship ")
    value = accuracy(module["make_model"](), tmp_path / "best.pt", *module["data"]()[1])
    assert f"{100 * value:.2f} %" in output and value > 0.5


def test_char_transformer(capsys: pytest.CaptureFixture[str]) -> None:
    module = example("char_transformer")
    module["main"](steps=40, every=8)
    *lines, advice = capsys.readouterr().out.splitlines()
    losses = [[float(word) for word in line.split()[2::2]] for line in lines]
    assert [len(row) for row in losses] == [4] * 5, "the live weights and three averages"
    assert losses[-1][0] < losses[0][0], "it learns"
    assert losses[-1][3] > losses[-1][0], "after so few steps the slowest average lags behind"
    assert advice.startswith("Ship ")
    model = module["CharTransformer"](20)
    assert model.head.weight is model.embed.weight


def test_mean_teacher() -> None:
    main = example("mean_teacher")["main"]
    helped, alone = main(), main(strength=0.0)
    assert set(helped) == {"student", "teacher"}
    assert helped["teacher"] > alone["student"]


def test_pinn(capsys: pytest.CaptureFixture[str]) -> None:
    errors = example("pinn")["main"]()
    assert errors["live"].shape == (10,)
    assert errors["half-life 100"].mean() < 0.8 * errors["live"].mean(), "an average of medium length is better"
    assert (errors["half-life 100"] < errors["live"]).sum() >= 7, "and for most seeds, not for all"
    assert errors["half-life 500"].mean() > errors["half-life 100"].mean(), "one that is too long is worse"
    assert f"{errors['half-life 100'].mean():8.5f}" in capsys.readouterr().out


def test_rollout(capsys: pytest.CaptureFixture[str]) -> None:
    times = example("rollout")["main"]()
    for name in ("half-life 20", "half-life 100"):
        assert times[name].mean() > 1.05 * times["live"].mean(), "a forecast by an average is useful for longer"
        assert (times[name] > times["live"]).sum() >= 3, "for most seeds, not for all"
    assert f"{times['half-life 20'].mean():6.2f}" in capsys.readouterr().out


def test_diffusion(capsys: pytest.CaptureFixture[str]) -> None:
    losses = example("diffusion")["main"]()
    assert losses["chosen"] < losses["live"], "the average chosen on validation points is better on test points"
    assert f"{losses['live']:6.4f}" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")  # of peft, about GPT-2's layers
def test_lora(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("peft", reason="peft is not installed: pip install transformers peft")
    losses = example("lora")["main"](str(tmp_path))
    assert losses["half-life 20"] < losses["live"]
    # The texts are Python's own. In 3.13 the live weights end worse than they began.
    assert losses["saved"] < min(losses["base"], losses["live"]), "it learns, and peft loads the best average"
    assert (tmp_path / "adapter_model.safetensors").exists()
    assert "6,912 of 77,376 weights are averaged" in capsys.readouterr().out


def test_own_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("own_model")["main"](str(tmp_path))
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


def test_data_parallel(tmp_path: Path) -> None:
    """With a real torchrun, as its docstring shows."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(FOLDER / "data_parallel.py")]
    process = subprocess.run(
        [sys.executable, *words, str(tmp_path / "averaged.pt")],
        env={**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    test = digits_dataset().test
    model = example("data_parallel")["make_model"]()
    value = accuracy(model, tmp_path / "averaged.pt", test.images.float() / 16.0, test.labels)
    assert process.stdout.splitlines() == [f"ema-0.96: {value:.1%} on test images"]
    assert value > 0.5


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*`isinstance.treespec, LeafSpec.`")  # inside Lightning
def test_lightning_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed: pip install '.[lightning]'")
    module = example("lightning_module")
    module["main"](str(tmp_path / "best.pt"), epochs=4)
    output = capsys.readouterr().out
    assert re.search(r"Ship (ema-|live)", output) and " of step " in output
    test = module["digits_dataset"]().test
    value = accuracy(module["Digits"](), tmp_path / "best.pt", test.images.float() / 16.0, test.labels)
    assert f"{100 * value:.2f} %" in output


def test_transformers_trainer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[transformers]'")
    averages = example("transformers_trainer")["main"](str(tmp_path / "run"), steps=12)
    output = capsys.readouterr().out
    assert re.search(r"Ship \S+ of step \d", output)
    assert "epoch" not in output[output.index("Ship ") :]
    losses = [row.value for row in averages.tracker.history if row.average == "live" and row.metric == "eval_loss"]
    assert len(losses) == 6 and losses[-1] < losses[0]
    assert (tmp_path / "run" / "checkpoint-12" / "emabank.pt").exists()
