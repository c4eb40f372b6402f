"""The files of a report in their folder: each whole or not there, and none that only an earlier report had. No torch.

The library's own way to write a file whole would import it.
"""

import errno
import glob
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

LIST = "files.json"
"""What the report wrote: these files, and no others, it may remove again."""


def write_files(
    folder: Path,
    files: Mapping[str, Callable[[Path], object]],
    *,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> None:
    """Write files by their names below a folder, and remove those that were written so before and are not any more.

    What writes a file is given a path beside it. `tell` hears how many of how many are done.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_files(Path(folder), {"tables/old.md": lambda path: path.write_text("1")})
    ...     write_files(Path(folder), {"tables/new.md": lambda path: path.write_text("2")})
    ...     sorted(path.name for path in Path(folder).rglob("*.*"))
    ['files.json', 'new.md']
    """
    earlier = _listed(folder)
    _write_list(folder, {*earlier, *files})  # whatever happens on the way, they are known as ours
    for done, (name, write) in enumerate(files.items(), start=1):
        _write(folder / name, write)
        tell(done, len(files))
    for name in sorted(earlier - set(files)):
        _remove(folder, name)
    _write_list(folder, files)


def _listed(folder: Path) -> set[str]:
    try:
        found = json.loads((folder / LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return set()
    return {name for name in found if isinstance(name, str)} if isinstance(found, list) else set()


def _write_list(folder: Path, names: Iterable[str]) -> None:
    text = json.dumps(sorted(names), indent=1) + "\n"
    _write(folder / LIST, lambda path: path.write_text(text, encoding="utf-8"))


def _write(path: Path, write: Callable[[Path], object]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"The folder for {path.name} cannot be made: {error.strerror}"
        raise OSError(error.errno, reason, str(path.parent)) from error
    _forget_parts(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(beside)
        os.replace(beside, path)
    except OSError as error:
        reason = f"Could not be written ({error.strerror or error})"
        raise OSError(error.errno or errno.EIO, reason, str(path)) from error
    finally:
        beside.unlink(missing_ok=True)


def _forget_parts(path: Path) -> None:
    """Remove what a killed process was about to write."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.[0-9]*"):
        with suppress(OSError):
            part.unlink()


def _remove(folder: Path, name: str) -> None:
    """Remove a file of an earlier report, and folders that are empty then; nothing outside of the report's folder."""
    path = folder / name
    inside = ".." not in PurePosixPath(name).parts and path.parent.resolve().is_relative_to(folder.resolve())
    if not inside or not (path.is_file() or path.is_symlink()):
        return
    path.unlink()
    _forget_parts(path)
    with suppress(OSError):  # not empty
        for parent in path.relative_to(folder).parents[:-1]:
            (folder / parent).rmdir()
