"""Checkpoints of a run: the last two, so that a damaged one costs time and not the run; and those others fork from.

torch comes with the functions that read and write, through emabank.checkpoint.
"""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

_KIND = "checkpoint of a run"
_CURRENT, _PREVIOUS, _NEXT = "checkpoint.pt", "checkpoint.previous.pt", "checkpoint.next.pt"
_MAPPING, _TUPLE = "__mapping__", "__tuple__"


def save(folder: Path, state: Mapping[str, Any]) -> None:
    """Make this the current checkpoint and keep the one before it; killed at any moment, whole ones are there.

    A state is nested dicts, lists and tuples of numbers, strings, None and tensors. An optimizer's integer keys come
    back as such; tensors come back on the CPU.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(Path(folder), {"epoch": 1, "optimizer": {0: (0.9, 0.99)}})
    ...     save(Path(folder), {"epoch": 2, "optimizer": {0: (0.9, 0.99)}})
    ...     sorted(entry.name for entry in Path(folder).iterdir()), load(Path(folder))
    (['checkpoint.previous.pt', 'checkpoint.pt'], {'epoch': 2, 'optimizer': {0: (0.9, 0.99)}})
    """
    write(folder / _NEXT, state)
    finish(folder)


def finish(folder: Path) -> None:
    """Put a new checkpoint in its place; it is whole once it has its name, and a kill may have come right after.

    >>> finish(Path("no/such/folder"))
    """
    if (folder / _NEXT).exists():
        if (folder / _CURRENT).exists():
            os.replace(folder / _CURRENT, folder / _PREVIOUS)
        os.replace(folder / _NEXT, folder / _CURRENT)


def load(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that is whole; None when there is none, which a warning explains if there was one.

    A damaged file is put aside under its name with `.damaged` behind it, and named in the warning.

    >>> load(Path("no/such/folder")) is None
    True
    """
    damaged: list[str] = []
    for name in (_NEXT, _CURRENT, _PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            state = read(path)
        except ValueError as error:
            if "upgrade emabank" in str(error):  # whole, only too new: training from the beginning would lose it
                raise
            os.replace(path, folder / f"{name}.damaged")
            damaged.append(str(path))
        else:
            if damaged:
                _warn(damaged, f"training goes on from {name}")
            return state
    if damaged:
        _warn(damaged, "training starts from the beginning")
    return None


def remove(folder: Path) -> None:
    """Remove the checkpoints of a run that needs them no longer; forks stay.

    >>> remove(Path("no/such/folder"))
    """
    for name in (_NEXT, _CURRENT, _PREVIOUS):
        (folder / name).unlink(missing_ok=True)
        (folder / f"{name}.damaged").unlink(missing_ok=True)


def write(path: Path, state: Mapping[str, Any]) -> None:
    """Write one state atomically, with a checksum over every value.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder, "epoch-3.pt"), {"epoch": 3})
    ...     read(Path(folder, "epoch-3.pt"))
    {'epoch': 3}
    """
    from emabank.checkpoint import write_state

    write_state(path, {"state": _encoded(state)}, kind=_KIND)


def read(path: Path) -> dict[str, Any]:
    """Read what `write` wrote; `ValueError` names a file that is not whole. Nothing in it is executed.

    >>> read(Path(__file__))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    ValueError: checkpoints.py is damaged, cut short or not a file of emabank.checkpoint; use another copy of it.
    """
    from emabank.checkpoint import read_state

    try:
        return _decoded(read_state(path, kind=_KIND)["state"])
    except (TypeError, LookupError, RecursionError) as error:  # whole, but not what `write` would have written
        raise ValueError(f"{path} is damaged, or no checkpoint of a run; use another copy of it") from error


def _warn(damaged: list[str], consequence: str) -> None:
    sentence = f"damaged, and put aside with .damaged behind the name: {', '.join(damaged)}; {consequence}"
    warnings.warn(sentence, RuntimeWarning, stacklevel=4)  # the caller of OpenRun.load_checkpoint


def _encoded(value: Any) -> Any:
    """Tuples, and dicts whose keys are not all strings, in a form that files keep; they know neither."""
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        if all(isinstance(key, str) and key not in (_MAPPING, _TUPLE) for key, _ in items):
            return {key: _encoded(item) for key, item in items}
        return {_MAPPING: [[_encoded(key), _encoded(item)] for key, item in items]}
    if isinstance(value, tuple):
        return {_TUPLE: [_encoded(item) for item in cast("tuple[Any, ...]", value)]}
    if isinstance(value, list):
        return [_encoded(item) for item in cast("list[Any]", value)]
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    values = cast("dict[str, Any]", value)
    if _MAPPING in values:
        return {_decoded(key): _decoded(item) for key, item in values[_MAPPING]}
    if _TUPLE in values:
        return tuple(_decoded(item) for item in values[_TUPLE])
    return {key: _decoded(item) for key, item in values.items()}
