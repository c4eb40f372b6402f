"""Which checkpoints a folder holds, in which order, and what is not guessed."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emabank.averaging import find_checkpoints, in_order


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def found(*paths: Path) -> list[str]:
    return [path.name for path in find_checkpoints(paths).checkpoints]


def test_files_in_the_order_of_their_numbers(tmp_path: Path):
    touch(tmp_path, "step-1000.pt", "step-200.pt", "step-30.pt", "optimizer.pt", "notes.txt", ".hidden-1.pt")
    assert found(tmp_path) == ["step-30.pt", "step-200.pt", "step-1000.pt"]


def test_lightnings_last_is_left_out_and_told(tmp_path: Path):
    touch(tmp_path, "epoch=9-step=90.ckpt", "epoch=10-step=100.ckpt", "last.ckpt")
    chosen = find_checkpoints([tmp_path])
    assert [path.name for path in chosen.checkpoints] == ["epoch=9-step=90.ckpt", "epoch=10-step=100.ckpt"]
    assert [path.name for path in chosen.left_out] == ["last.ckpt"]
    assert found(tmp_path / "epoch=9-step=90.ckpt", tmp_path / "last.ckpt")[-1] == "last.ckpt"


def test_names_without_numbers_are_taken_where_there_are_no_others(tmp_path: Path):
    assert found(touch(tmp_path, "b.pt", "a.pt", "c1.pt")) == ["a.pt", "b.pt", "c1.pt"]


@pytest.mark.parametrize(
    "weights", ["model.safetensors", "pytorch_model.bin", "model.safetensors.index.json", "net.pt"]
)
def test_folders_in_the_order_of_their_numbers(tmp_path: Path, weights: str):
    touch(tmp_path, *(f"checkpoint-{step}/{weights}" for step in (1000, 500, 50)), "runs/events", "trainer_state.json")
    touch(tmp_path / "checkpoint-50", "optimizer.pt", "config.json")
    assert found(tmp_path) == ["checkpoint-50", "checkpoint-500", "checkpoint-1000"]


def test_a_folder_that_is_a_checkpoint_is_one(tmp_path: Path):
    touch(tmp_path, "a/model.safetensors.index.json", "a/model-00001-of-00002.safetensors", "b/weights.pt")
    assert found(tmp_path / "b", tmp_path / "a") == ["b", "a"]


def test_what_may_mean_two_things_is_refused(tmp_path: Path):
    touch(tmp_path, "model.safetensors", "checkpoint-500/model.safetensors", "checkpoint-60/model.safetensors")
    with pytest.raises(
        ValueError, match="holds a checkpoint and folders with others, such as checkpoint-60; name those"
    ):
        find_checkpoints([tmp_path])
    with pytest.raises(ValueError, match="model.safetensors is named more than once"):
        find_checkpoints([tmp_path / "model.safetensors", tmp_path / "." / "model.safetensors"])


def test_nothing_there_is_told(tmp_path: Path):
    with pytest.raises(ValueError, match="There is no checkpoint in"):
        find_checkpoints([tmp_path])
    with pytest.raises(FileNotFoundError, match="no such checkpoint"):
        find_checkpoints([tmp_path / "nowhere"])


def test_numbers_of_folders_count_too():
    steps = [Path(f"runs/checkpoint-{step}/model.safetensors") for step in (1000, 500)]
    assert in_order(steps) == steps[::-1]


@given(st.lists(st.integers(0, 10**9), unique=True))
def test_numbers_are_numbers(numbers: list[int]):
    names = [Path(f"step-{number}.pt") for number in numbers]
    assert in_order(names) == [Path(f"step-{number}.pt") for number in sorted(numbers)]


def test_any_names_have_an_order():
    names = [Path(name) for name in ("²", "٣", "1a", "a", "a1", "a1b2", "", "01", "1")]
    assert in_order(names) == in_order(reversed(names))
