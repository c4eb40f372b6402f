"""Averages of checkpoints on disk in all three layouts, for the torture tests.

One average is new; the other two replace older ones, which must stay whole until then.
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
"""Folders of checkpoints, and the names of their averages."""
_SEEDS = (1, 2, 3)


@cache
def scratch_folder() -> Path:
    """A folder of this process, removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="emabank-torture-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def make_state(seed: int) -> dict[str, Tensor]:
    """A large tensor, one of another type, and a count."""
    values = torch.Generator().manual_seed(seed)
    return {
        "embedding": torch.randn(300, 500, generator=values),
        "half": torch.randn(64, 33, generator=values).bfloat16(),
        "num_batches_tracked": torch.tensor(7),
    }


def prepare(folder: Path) -> None:
    """Put the checkpoints into a folder, with two older averages."""
    shutil.copytree(_prepared(), folder, dirs_exist_ok=True)


@cache
def _prepared() -> Path:
    folder = scratch_folder() / "checkpoints"
    for name in ("files", "torch", "folders"):
        (folder / name).mkdir(parents=True)
    for seed in _SEEDS:
        save_file(make_state(seed), folder / "files" / f"step-{seed}.safetensors", {"format": "pt"})
        torch.save({"state_dict": make_state(seed), "epoch": seed}, folder / "torch" / f"step-{seed}.pt")
        inside = folder / "folders" / f"checkpoint-{seed}"
        inside.mkdir()
        save_file(make_state(seed), inside / "model.safetensors", {"format": "pt"})
        (inside / "config.json").write_text('{"hidden_size": 500}\n')
    for name in ("torch", "folders"):
        average_checkpoints(_checkpoints(folder, name)[:2], folder / AVERAGES[name])
    return folder


def _checkpoints(folder: Path, name: str) -> tuple[Path, ...]:
    return find_checkpoints([folder / name]).checkpoints


def average(folder: Path) -> int:
    """Run the command for each of the three."""
    codes = [
        main(["average", str(folder / name), "--out", str(folder / out), "--force"]) for name, out in AVERAGES.items()
    ]
    remove_strays(folder)
    return max(codes)


def average_or_raise(folder: Path) -> None:
    """The same in Python."""
    for name, out in AVERAGES.items():
        average_checkpoints(_checkpoints(folder, name), folder / out, replace_out=True)
    remove_strays(folder)


def remove_strays(folder: Path) -> None:
    """Remove hidden temporary files of killed processes: they are not compared."""
    for path in [*folder.glob(".*.tmp"), *folder.glob(".*.old")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def content(path: Path) -> dict[str, bytes] | None:
    """The bytes of a file, or of the files of a folder; None if it does not exist."""
    if not path.exists():
        return None
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return {file.name: file.read_bytes() for file in files}


def check_whole(folder: Path, done: Path) -> None:
    """Check that every average is entirely the new one or entirely the old one.

    A folder is missing for the moment between two renames.
    """
    for out in AVERAGES.values():
        allowed = [content(done / out), content(_prepared() / out), *([None] if out == "soup" else [])]
        assert content(folder / out) in allowed, f"half of {out}"
