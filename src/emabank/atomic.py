"""Files written whole or not at all. Imports no torch, so that the report can use it too."""

import errno
import os
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["remove_temporary", "sync", "write_atomically"]

# Of `write_atomically`, and of safetensors inside it.
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp|\.tmp[A-Za-z0-9]{6}")


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Write a file so that a crash, a full disk or Ctrl-C leaves the old file or the new one, never a part.

    `write` gets a temporary path in the same folder and fills it. Missing folders are created. A symbolic link stays
    one: the file that it points to is replaced.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(f"{folder}/new/notes.txt", lambda temporary: temporary.write_text("whole"))
    ...     Path(folder, "new", "notes.txt").read_text()
    'whole'
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        # Replacing would work, for root even on /dev/null.
        raise OSError(errno.EINVAL, "Only a regular file can be replaced", str(target))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"The folder for {target.name} cannot be made: {error.strerror}"
        raise OSError(error.errno, reason, str(target.parent)) from error
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        temporary.touch(exist_ok=False)
        write(temporary)
        sync(temporary, os.O_RDWR)
        os.replace(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            reason = f"Could not be written ({error.strerror or error}); what was there before is unchanged"
            raise OSError(error.errno or errno.EIO, reason, str(target)) from error
        raise
    if os.name == "posix":
        with suppress(OSError):  # the file is in place; some network file systems refuse to sync a folder
            sync(target.parent, os.O_RDONLY)


def sync(path: Path, flags: int) -> None:
    """Wait until a file or folder is on the disk; it is opened with these flags, which differ between the two."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_temporary(folder: Path) -> None:
    """Remove what a killed process was about to write into a folder, if there is such a folder."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)
