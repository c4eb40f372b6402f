"""For the torture tests: a disk that fails at the k-th operation, and one that is really full."""

import builtins
import contextlib
import errno
import gc
import io
import os
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_NAMELESS = getattr(os, "O_TMPFILE", os.O_CREAT)  # files without a name, in a folder
REASONS = {errno.ENOSPC: "No space left on device", errno.EIO: "Input/output error"}


class Disk:
    """Counts what is written below a folder: files made, bytes written, syncs and renames; one of them may fail."""

    def __init__(self, folder: Path, *, fails_at: int | None = None, number: int = errno.ENOSPC) -> None:
        self.folder, self.fails_at, self.number, self.count = str(folder.resolve()), fails_at, number, 0
        self.failed = ""
        """Which operation failed."""

    def operation(self, what: str) -> None:
        self.count += 1
        if self.count == self.fails_at:
            self.failed = what
            raise OSError(self.number, REASONS[self.number])

    def is_ours(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.path.abspath(os.fspath(path)).startswith(self.folder)


@contextmanager
def disk(folder: Path, *, fails_at: int | None = None, number: int = errno.ENOSPC) -> Generator[Disk]:
    """Python's own ways to write, below a folder, counted and made to fail; what Rust writes goes by unseen."""
    counted = Disk(folder, fails_at=fails_at, number=number)
    with pytest.MonkeyPatch.context() as patch:
        _patch_files(patch, counted)
        real_open, fsync = os.open, os.fsync

        def made(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            if (flags & os.O_CREAT or flags & _NAMELESS == _NAMELESS) and counted.is_ours(path):
                counted.operation("create")
            return real_open(path, flags, *rest, **options)

        def renaming(rename: Callable[..., None]) -> Callable[..., None]:
            def renamed(source: Any, target: Any) -> None:
                if counted.is_ours(target):
                    counted.operation(rename.__name__)
                rename(source, target)

            return renamed

        def synced(descriptor: int) -> None:
            counted.operation("fsync")
            fsync(descriptor)

        patch.setattr(os, "open", made)
        for rename in (os.replace, os.rename):
            patch.setattr(os, rename.__name__, renaming(rename))
        patch.setattr(os, "fsync", synced)
        yield counted


def _patch_files(patch: pytest.MonkeyPatch, counted: Disk) -> None:
    class Raw(io.FileIO):
        def write(self, content: Any) -> int:
            counted.operation("write")
            return super().write(content)

    real: Callable[..., Any] = io.open

    def opened(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if not counted.is_ours(file) or not set(mode) & set("wax+") or "+" in mode:
            return real(file, mode, *rest, **options)
        counted.operation("create")
        binary = io.BufferedWriter(Raw(file, mode.replace("b", "").replace("t", "")))
        return binary if "b" in mode else io.TextIOWrapper(binary, encoding=options.get("encoding"))

    patch.setattr(io, "open", opened)
    patch.setattr(builtins, "open", opened)


@contextmanager
def small_disk(folder: Path, *, size: str) -> Generator[Path]:
    """A file system of so many bytes, mounted at a folder; the test is skipped where none can be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "emabank-torture", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"no tmpfs can be mounted here: {error}")
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        gc.collect()  # what an error holds may be mapped from there
        subprocess.run(["umount", str(folder)], check=True, timeout=30)


@contextmanager
def filled(folder: Path, *, but: int) -> Generator[None]:
    """The file system of a folder is full, but for so many bytes."""
    ballast = folder / "ballast"
    free = os.statvfs(folder)
    size = max(0, free.f_bavail * free.f_frsize - but)
    with contextlib.closing(os.fdopen(os.open(ballast, os.O_WRONLY | os.O_CREAT), "wb")) as file:
        os.posix_fallocate(file.fileno(), 0, max(1, size))
    try:
        yield
    finally:
        ballast.unlink()
