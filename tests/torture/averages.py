"""For the torture tests: averages of checkpoints on disk, in the three layouts that there are.

One is new; the other two take the place of older ones, which must be whole until they are replaced.
"""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from emabank.averaging import average_checkpoints, find_checkpoints
from emabank.study.commands import main

AVERAGES = {"files": "average.safetensors", "torch": "average.pt", "folders": "soup"}
"""Folders of checkpoints, and where their averages go."""
_SEEDS = (1, 2, 3)


@cache
def scratch_folder() -> Path:
    """A folder of this process for what has to be made once, removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="emabank-torture-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def state(seed: int) -> dict[str, Tensor]:
    """Tensors of more pieces than one, a count, and one of another type."""
    values = torch.Generator().manual_seed(seed)
    return {
        "embedding": torch.randn(300, 500, generator=values),
        "half": torch.randn(64, 33, generator=values).bfloat16(),
        "num_batches_tracked": torch.tensor(7),
    }


def prepare(folder: Path) -> None:
    """Put the checkpoints into a folder, and an older average where two of the new ones will be."""
    shutil.copytree(_prepared(), folder, dirs_exist_ok=True)


@cache
def _prepared() -> Path:
    folder = scratch_folder() / "checkpoints"
    for name in ("files", "torch", "folders"):
        (folder / name).mkdir(parents=True)
    for seed in _SEEDS:
        save_file(state(seed), folder / "files" / f"step-{seed}.safetensors", {"format": "pt"})
        torch.save({"state_dict": state(seed), "epoch": seed}, folder / "torch" / f"step-{seed}.pt")
        inside = folder / "folders" / f"checkpoint-{seed}"
        inside.mkdir()
        save_file(state(seed), inside / "model.safetensors", {"format": "pt"})
        (inside / "config.json").write_text('{"hidden_size": 500}\n')
    for name in ("torch", "folders"):
        average_checkpoints(_found(folder, name)[:2], folder / AVERAGES[name])
    return folder


def _found(folder: Path, name: str) -> tuple[Path, ...]:
    return find_checkpoints([folder / name]).checkpoints


def average(folder: Path) -> int:
    """The command, for each of the three."""
    codes = [
        main(["average", str(folder / name), "--out", str(folder / out), "--force"]) for name, out in AVERAGES.items()
    ]
    forget_strays(folder)
    return max(codes)


def average_or_raise(folder: Path) -> None:
    """The same in Python."""
    for name, out in AVERAGES.items():
        average_checkpoints(_found(folder, name), folder / out, replace_out=True)
    forget_strays(folder)


def forget_strays(folder: Path) -> None:
    """What a killed process was writing has a hidden name, and is not compared."""
    for path in [*folder.glob(".*.tmp"), *folder.glob(".*.old")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def content(path: Path) -> dict[str, bytes] | None:
    """The bytes of a file, or of the files of a folder; None where there is nothing of that name."""
    if not path.exists():
        return None
    inside = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
    return {each.name: each.read_bytes() for each in inside}


def check_whole(folder: Path, done: Path) -> None:
    """Whatever lies under the name of an average is all of the new one or all of the old one.

    A folder has no name for the instant between two renames.
    """
    for out in AVERAGES.values():
        allowed = [content(done / out), content(_prepared() / out), *([None] if out == "soup" else [])]
        assert content(folder / out) in allowed, f"half of {out}"
