"""A lock on a run, for one process at a time: `flock` on a file, freed however its holder ends, even by kill -9.

The file stays; nothing has to be removed by hand. Across hosts the lock works where the file system supports it: NFS on
Linux does (as byte-range locks, freed when the server notices that a host is gone), Lustre when mounted with `flock`; a
mount with `local_lock` excludes only processes of the same host. Standard library only.
"""

import errno
import json
import os
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# is_locked() holds a shared lock for an instant, so taking the lock is retried for this many seconds.
PATIENCE = 0.5
_BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)

_held: set[int] = set()  # descriptors, for a child of fork() to close


class LockedError(OSError):
    """Another process holds the lock; the message says which, where and since when."""


@contextmanager
def locked(path: str | os.PathLike[str], *, what: str) -> Generator[None]:
    """Hold the lock at this path, whose folder must exist; `LockedError` if another process holds it.

    `what` names the locked thing in the message. Children made by `fork` or `subprocess` do not hold the lock.
    """
    path, process = Path(path), os.getpid()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    _held.add(descriptor)
    try:
        if not _taken(descriptor, path, exclusive=True, patience=PATIENCE):
            raise LockedError(f"{what} is in use by {_owner(path)}; wait until it has ended, or end it")
        with suppress(OSError):  # on a full disk the lock still works; only the message has less detail
            _write_owner(descriptor)
        yield
    finally:
        if os.getpid() == process:  # a forked child that ends in here has already closed its copy
            _held.discard(descriptor)
            os.close(descriptor)  # frees the lock


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Whether a process holds the lock at this path. A lock that was never taken has no file."""
    path = Path(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _taken(descriptor, path, exclusive=False, patience=0)
    finally:
        os.close(descriptor)


def _taken(descriptor: int, path: Path, *, exclusive: bool, patience: float) -> bool:
    if fcntl is None:
        raise OSError(
            "runs are locked with flock, which this system does not have; use Linux, macOS or the Windows Subsystem "
            "for Linux"
        )
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _BUSY:
                reason = f"cannot be locked ({error.strerror}); keep the runs on a file system that supports flock"
                raise OSError(error.errno, reason, str(path)) from error
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
        else:
            return True


def _write_owner(descriptor: int) -> None:
    since = datetime.now(timezone.utc).isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")
    text = json.dumps({"process": os.getpid(), "host": socket.gethostname(), "since": since})
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)


def _owner(path: Path) -> str:
    try:
        owner = json.loads(path.read_bytes())
        return f"process {owner['process']} on {owner['host']} since {owner['since']}"
    except (OSError, ValueError, TypeError, KeyError):  # just taken, or taken on a full disk
        return "another process"


def _release_in_child() -> None:
    # A forked child shares the parent's open file. If the child kept it, the lock would outlive the parent.
    while _held:
        with suppress(OSError):
            os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
