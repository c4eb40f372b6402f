"""A disk that fails at the k-th operation, and one that is really full, for the torture tests."""

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

_NAMELESS = getattr(os, "O_TMPFILE", os.O_CREAT)  # unnamed files in a folder
REASONS = {errno.ENOSPC: "No space left on device", errno.EIO: "Input/output error"}


class Disk:
    """Counts operations below a folder (files created, writes, syncs, renames); one of them may fail."""

    def __init__(self, folder: Path, *, fails_at: int | None = None, number: int = errno.ENOSPC) -> None:
        self.folder, self.fails_at, self.number, self.count = str(folder.resolve()), fails_at, number, 0
        self.failed = ""
        """Which operation failed."""

    def operation(self, name: str) -> None:
        self.count += 1
        if self.count == self.fails_at:
            self.failed = name
            raise OSError(self.number, REASONS[self.number])

    def is_inside(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.path.abspath(os.fspath(path)).startswith(self.folder)


@contextmanager
def disk(folder: Path, *, fails_at: int | None = None, number: int = errno.ENOSPC) -> Generator[Disk]:
    """Count what Python writes below a folder, and let one operation fail; writes from Rust are not seen."""
    counted = Disk(folder, fails_at=fails_at, number=number)
    with pytest.MonkeyPatch.context() as patch:
        _patch_files(patch, counted)
        real_open, fsync = os.open, os.fsync

        def counted_open(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            if (flags & os.O_CREAT or flags & _NAMELESS == _NAMELESS) and counted.is_inside(path):
                counted.operation("create")
            return real_open(path, flags, *rest, **options)

        def counted_rename(rename: Callable[..., None]) -> Callable[..., None]:
            def call(source: Any, target: Any) -> None:
                if counted.is_inside(target):
                    counted.operation(rename.__name__)
                rename(source, target)

            return call

        def counted_fsync(descriptor: int) -> None:
            counted.operation("fsync")
            fsync(descriptor)

        patch.setattr(os, "open", counted_open)
        for rename in (os.replace, os.rename):
            patch.setattr(os, rename.__name__, counted_rename(rename))
        patch.setattr(os, "fsync", counted_fsync)
        yield counted


def _patch_files(patch: pytest.MonkeyPatch, counted: Disk) -> None:
    class Raw(io.FileIO):
        def write(self, content: Any) -> int:
            counted.operation("write")
            return super().write(content)

    real: Callable[..., Any] = io.open

    def counted_open(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if not counted.is_inside(file) or not set(mode) & set("wax+") or "+" in mode:
            return real(file, mode, *rest, **options)
        counted.operation("create")
        binary = io.BufferedWriter(Raw(file, mode.replace("b", "").replace("t", "")))
        return binary if "b" in mode else io.TextIOWrapper(binary, encoding=options.get("encoding"))

    patch.setattr(io, "open", counted_open)
    patch.setattr(builtins, "open", counted_open)


@contextmanager
def small_disk(folder: Path, *, size: str) -> Generator[Path]:
    """Mount a file system of this size at a folder; skip the test if that is not possible."""
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
        gc.collect()  # an error may keep memory maps of its files alive
        subprocess.run(["umount", str(folder)], check=True, timeout=30)


@contextmanager
def filled(folder: Path, *, but: int) -> Generator[None]:
    """Fill the file system of a folder, except for `but` bytes."""
    ballast = folder / "ballast"
    free = os.statvfs(folder)
    size = max(0, free.f_bavail * free.f_frsize - but)
    with contextlib.closing(os.fdopen(os.open(ballast, os.O_WRONLY | os.O_CREAT), "wb")) as file:
        os.posix_fallocate(file.fileno(), 0, max(1, size))
    try:
        yield
    finally:
        ballast.unlink()
