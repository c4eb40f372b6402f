"""Which checkpoints are meant by what was named, and in which order. May import sources."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from emabank.averaging.sources import is_weights, weights_in


@dataclass(frozen=True)
class Found:
    """Checkpoints that are to be averaged, and those that are not."""

    checkpoints: tuple[Path, ...]
    """In order."""
    left_out: tuple[Path, ...] = ()
    """Those of a folder whose place in the order is unknown."""


def in_order(paths: Iterable[Path]) -> list[Path]:
    """As people count: checkpoint-900 before checkpoint-1000.

    >>> [path.name for path in in_order([Path("checkpoint-1000"), Path("checkpoint-900")])]
    ['checkpoint-900', 'checkpoint-1000']
    """
    return sorted(paths, key=_as_counted)


def _as_counted(path: Path) -> tuple[list[tuple[str, int]], str]:
    parts = [*re.split(r"([0-9]+)", path.as_posix()), "0"]
    return [(text, int(number)) for text, number in zip(parts[::2], parts[1::2], strict=True)], path.as_posix()


def find_checkpoints(paths: Sequence[Path]) -> Found:
    """The checkpoints that some files and folders are, or hold.

    Files, and folders that are a checkpoint, stay in the order given. A folder of checkpoints stands for all of them,
    in the order of the numbers in their names; those without a number (`last.ckpt`) are left out where others have one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("step-20.pt", "step-100.pt", "last.pt"):
    ...         Path(folder, name).touch()
    ...     found = find_checkpoints([Path(folder)])
    >>> [path.name for path in found.checkpoints], [path.name for path in found.left_out]
    (['step-20.pt', 'step-100.pt'], ['last.pt'])
    """
    checkpoints: list[Path] = []
    left_out: list[Path] = []
    for path in paths:
        if not path.is_dir():
            if not path.exists():
                raise FileNotFoundError(2, "There is no such checkpoint", str(path))
            checkpoints.append(path)
            continue
        some, others = _in_folder(path)
        checkpoints += some
        left_out += others
    real = [path.resolve() for path in checkpoints]
    twice = next((path for path, each in zip(checkpoints, real, strict=True) if real.count(each) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is named more than once; with weights one can count more than the others.")
    return Found(tuple(checkpoints), tuple(left_out))


def _in_folder(folder: Path) -> tuple[list[Path], list[Path]]:
    itself = weights_in(folder) is not None
    inside = [each for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".") and weights_in(each)]
    files = [each for each in folder.iterdir() if is_weights(each) and each.is_file()]
    if inside and (itself or files):
        raise ValueError(
            f"{folder} holds a checkpoint and folders with others, such as {in_order(inside)[0].name}; "
            "name those that you mean."
        )
    if itself:
        return [folder], []
    several = in_order(inside or files)
    if not several:
        raise ValueError(f"There is no checkpoint in {folder}, neither a file of weights nor a folder with one.")
    numbered = [path for path in several if re.search(r"[0-9]", path.name)]
    if len(numbered) < 2:
        return several, []
    return numbered, [path for path in several if path not in numbered]
