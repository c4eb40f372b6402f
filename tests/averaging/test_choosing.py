"""Checkpoints and weights of a merge: like a decay, the best by a metric, a greedy soup."""

import argparse
import math
from collections import OrderedDict
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from emabank.averaging import average_checkpoints, best_checkpoints, checkpoint_step, greedy_soup, recent_checkpoints
from emabank.rules import DECAY_SHAPES, decay_merge_weights
from tests.support.files import assert_average, everything_in, mean, read, state, write_all


@pytest.mark.parametrize("shape", DECAY_SHAPES)
def test_a_merge_equals_the_end_of_a_decay_with_the_same_gradients(shape) -> None:
    steps, updates = [30, 35, 36, 50, 70], torch.randn(70, generator=torch.Generator().manual_seed(0)).double()
    for earlier, later in pairwise(steps):  # checkpoints only show the mean update between them
        updates[earlier:later] = updates[earlier:later].mean()
    positions = updates.cumsum(0)
    branch = positions[29]
    for step in range(30, 70):
        branch = branch + DECAY_SHAPES[shape]((step - 30) / 40) * updates[step]
    merged = sum(
        weight * positions[step - 1] for step, weight in zip(steps, decay_merge_weights(steps, shape), strict=True)
    )
    assert float(merged) == pytest.approx(float(branch), rel=1e-12)


def test_merge_weights_of_steps_counted_in_tokens() -> None:
    means = [5 / 6, 5 / 12, 1 / 12]  # of 1 - x / 6, by the midpoints
    expected = [earlier - later for earlier, later in pairwise([1, *means, 0])]
    weights = decay_merge_weights([0, 2 * 10**12, 5 * 10**12, 6 * 10**12], "linear")
    assert weights == pytest.approx(expected, abs=1e-4) and math.fsum(weights) == pytest.approx(1, abs=1e-12)


def test_merge_weights_and_their_controls() -> None:
    linear = decay_merge_weights(range(0, 101, 10), "linear")
    assert linear[1:-1] == pytest.approx([0.1] * 9) and linear[0] == pytest.approx(0.045)
    for shape in DECAY_SHAPES:
        weights = decay_merge_weights([3, 8, 20, 21, 40], shape)
        assert math.fsum(weights) == pytest.approx(1, abs=1e-12) and min(weights) >= 0
        assert decay_merge_weights([3, 8, 20, 21, 40], shape, control="reversed") == weights[::-1]
        scrambled = decay_merge_weights([3, 8, 20, 21, 40], shape, control="scrambled")
        assert sorted(scrambled) == sorted(weights) and scrambled != weights
    assert decay_merge_weights([7], "cosine") == [1.0]
    for steps in ([], [1, 1], [3, 2]):
        with pytest.raises(ValueError, match="^steps must"):
            decay_merge_weights(steps, "linear")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-500", 500),
        ("epoch=3-step=1200.ckpt", 1200),
        ("checkpoint-17.pth.tar", 17),
        ("model_0040.safetensors", 40),
        ("global_step12.pt", 12),
        ("resnet50-90.pt", 90),
        ("llama-3.2-checkpoint-500", 500),
        ("model-0.5B-500.pt", 500),
        ("checkpoint.500.pt", 500),
        ("epoch=3-val_acc=0.91.ckpt", 3),
        ("epoch=3-v1.ckpt", 3),
    ],
)
def test_steps_are_read_from_names(name: str, step: int) -> None:
    assert checkpoint_step(Path("runs-7") / name) == step


def test_missing_and_repeated_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="last.ckpt must have its step"):
        recent_checkpoints([Path("step-1.pt"), Path("last.ckpt")])
    with pytest.raises(ValueError, match="different steps"):
        recent_checkpoints([Path("a/step-1.pt"), Path("b/step-1.pt")])


# The best by a metric -------------------------------------------------------------------------------------------------


def write_timm(folder: Path, epoch: int, metric: float) -> Path:
    """A checkpoint of timm's CheckpointSaver."""
    content = {
        "epoch": epoch,
        "arch": "resnet8",
        "state_dict": OrderedDict(state(epoch)),
        "optimizer": {"state": {0: {"momentum_buffer": torch.ones(3)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        "version": 2,
        "args": argparse.Namespace(model="resnet8", lr=0.1, mean=None, opt_betas=[0.9, 0.99]),
        "state_dict_ema": OrderedDict(state(100 + epoch)),
        "metric": metric,
    }
    path = folder / f"checkpoint-{epoch}.pth.tar"
    torch.save(content, path)
    return path


def test_the_best_timm_checkpoints_are_chosen_and_averaged(tmp_path: Path) -> None:
    paths = [write_timm(tmp_path, epoch, metric) for epoch, metric in enumerate((70.5, 71.5, math.nan, 71.0))]
    assert best_checkpoints(paths, 2, "metric") == [paths[1], paths[3]]
    assert best_checkpoints(paths, 1, "metric", lowest=True) == [paths[0]]
    with pytest.raises(ValueError, match="^count must be at most 3, .* 'metric' is not NaN; got 4"):
        best_checkpoints(paths, 4, "metric")
    average_checkpoints(best_checkpoints(paths, 2, "metric"), tmp_path / "average.pth.tar")
    with torch.serialization.safe_globals([argparse.Namespace]):
        average = torch.load(tmp_path / "average.pth.tar", weights_only=True)
    assert_average(average["state_dict"], mean([state(1), state(3)]))
    assert average["args"].model == "resnet8" and average["epoch"] == 3 and average["version"] == 2
    average_checkpoints(paths[:2], tmp_path / "ema.pth", key="state_dict_ema")
    with torch.serialization.safe_globals([argparse.Namespace]):
        average = torch.load(tmp_path / "ema.pth", weights_only=True)
    assert_average(average["state_dict_ema"], mean([state(100), state(101)]))


def test_a_metric_is_read_from_the_file_name(tmp_path: Path) -> None:
    names = ["epoch=1-val_loss=0.50.pt", "epoch=2-val_loss=5.0e-05.pt", "epoch=3-val_loss=1.5.pt"]
    paths = [write_all(tmp_path / "written", ".pt", [state(1)])[0].rename(tmp_path / name) for name in names]
    assert best_checkpoints(paths, 2, "val_loss", lowest=True) == paths[:2]
    with pytest.raises(ValueError, match="epoch=1-val_loss=0.50.pt must have a number 'accuracy'"):
        best_checkpoints(paths, 2, "accuracy")
    with pytest.raises(ValueError, match="^count must"):
        best_checkpoints(paths, 4, "val_loss")
    diverged = tmp_path / "epoch=4-val_loss=nan.pt"
    assert best_checkpoints([diverged, *paths], 1, "val_loss", lowest=True) == paths[1:2]
    with pytest.raises(ValueError, match="^metric must be the whole name .* got 'loss'"):
        best_checkpoints([tmp_path / "train_loss=0.1-val_loss=0.9.pt"], 1, "loss")


# Greedy soup ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_greedy_soup_adds_checkpoints_that_improve_it(tmp_path: Path, suffix: str) -> None:
    values = [3.0, -1.0, 9.0, 0.5]
    paths = write_all(tmp_path, suffix, [{"weight": torch.tensor([value])} for value in values])
    added: dict[str, bool] = {}
    plan = greedy_soup(
        paths,
        tmp_path / f"soup{suffix}",
        lambda path: -abs(float(read(path)["weight"])),  # 0 is best
        report=lambda path, score, is_added: added.update({path.stem: is_added}),
    )
    # 0.5 alone scores -0.5, with -1 it scores -0.25; 3 and 9 make it worse.
    assert added == {"step-3": True, "step-1": True, "step-0": False, "step-2": False}
    assert [path.stem for path, _ in plan.checkpoints] == ["step-1", "step-3"]
    assert read(tmp_path / f"soup{suffix}")["weight"].tolist() == [-0.25]
    assert len(everything_in(tmp_path)) == 5


def test_a_greedy_soup_of_checkpoints_without_a_score_is_refused(tmp_path: Path) -> None:
    paths = write_all(tmp_path, ".pt", [state(1), state(2)])
    with pytest.raises(ValueError, match="^score must be a number"):
        greedy_soup(paths, tmp_path / "soup.pt", lambda path: math.nan)
    assert everything_in(tmp_path) == ["step-0.pt", "step-1.pt"]


def test_a_greedy_soup_writes_no_files_if_the_score_fails(tmp_path: Path) -> None:
    paths = write_all(tmp_path, ".pt", [state(1), state(2)])

    def score(path: Path) -> float:
        if path not in paths:
            raise RuntimeError("no score")
        return 1.0

    with pytest.raises(RuntimeError, match="no score"):
        greedy_soup(paths, tmp_path / "soup.pt", score)
    assert everything_in(tmp_path) == ["step-0.pt", "step-1.pt"]
