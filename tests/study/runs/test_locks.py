"""A lock keeps other processes out, names its holder, and is freed when the holder dies."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from emabank.study.runs import locks
from emabank.study.runs.locks import LockedError, is_locked, locked

SOURCE = str(Path(locks.__file__).parents[3])
HOLD = """
import sys
from emabank.study.runs.locks import locked
with locked(sys.argv[1], what="run a"):
    {inside}
    print("locked", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def holder(path: Path, inside: str = "pass") -> "Generator[subprocess.Popen[str]]":
    """Another process that holds the lock until it reads a line or is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD.format(inside=inside), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "locked\n"
            yield process
        finally:
            process.kill()


def is_free(path: Path) -> bool:
    try:
        with locked(path, what="run a"):
            return True
    except LockedError:
        return False


def test_a_locked_error_names_the_process_machine_and_start_time(tmp_path: Path):
    path = tmp_path / "lock"
    with holder(path) as process:
        assert is_locked(path)
        with pytest.raises(LockedError) as caught, locked(path, what="run a"):
            pass
        holding = f"process {process.pid} on {socket.gethostname()}"
        assert str(caught.value).startswith(f"run a is in use by {holding} since 2")
        assert str(caught.value).endswith(" UTC; wait until it has ended, or end it")
        process.communicate("end\n", timeout=60)
    assert not is_locked(path)
    assert is_free(path)


def test_killing_the_holder_frees_the_lock_at_once(tmp_path: Path):
    path = tmp_path / "lock"
    for _ in range(3):
        with holder(path) as process:
            assert not is_free(path)
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=60)
            assert not is_locked(path)
            assert is_free(path)


@pytest.mark.parametrize(
    "child",
    [
        "import os, time; child = os.fork(); child or time.sleep(60); print(child)",
        "import subprocess; print(subprocess.Popen(['sleep', '60'], close_fds=False, stdout=2).pid)",
    ],
    ids=["fork", "subprocess with all descriptors"],
)
def test_children_of_a_killed_holder_do_not_keep_the_lock(tmp_path: Path, child: str):
    path = tmp_path / "lock"
    note = child.replace("print(", f"open({str(tmp_path / 'child')!r}, 'w').write(str(").rstrip() + ")"
    with holder(path, note) as process:
        child_id = int((tmp_path / "child").read_text())
        try:
            process.kill()
            process.wait(timeout=60)
            os.kill(child_id, 0)  # the child still runs
            assert is_free(path)
        finally:
            os.kill(child_id, signal.SIGKILL)


def test_a_forked_child_that_leaves_the_context_keeps_the_lock(tmp_path: Path):
    path = tmp_path / "lock"
    inside = "import os; child = os.fork()\n    if not child: sys.exit()\n    os.waitpid(child, 0)"
    with holder(path, inside):
        assert not is_free(path)


def test_a_process_cannot_lock_twice_and_an_exception_frees_the_lock(tmp_path: Path):
    path = tmp_path / "lock"
    with pytest.raises(KeyError), locked(path, what="run a"):
        with pytest.raises(LockedError, match=f"process {os.getpid()} "), locked(path, what="run a"):
            pass
        raise KeyError("x")
    assert is_free(path)


def test_locking_waits_for_processes_that_only_query_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(locks, "PATIENCE", 60)
    with open(tmp_path / "lock", "w") as query:
        fcntl.flock(query, fcntl.LOCK_SH)  # as is_locked does, briefly
        threading.Timer(0.1, fcntl.flock, (query, fcntl.LOCK_UN)).start()
        assert is_free(tmp_path / "lock")


def test_is_locked_creates_no_file(tmp_path: Path):
    assert not is_locked(tmp_path / "lock")
    assert not list(tmp_path.iterdir())


def test_a_holder_that_could_not_write_its_name_is_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with (
        locked(tmp_path / "lock", what="run a"),
        pytest.raises(LockedError, match="in use by another process"),
        locked(tmp_path / "lock", what="run a"),
    ):
        pass


def test_a_system_without_locks_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Refusing:
        LOCK_EX = LOCK_SH = LOCK_NB = 0

        @staticmethod
        def flock(*_: object) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks, "fcntl", Refusing)
    with pytest.raises(OSError, match="cannot be locked .No locks available.; keep the runs on") as caught:
        is_free(tmp_path / "lock")
    assert caught.value.filename == str(tmp_path / "lock")
    monkeypatch.setattr(locks, "fcntl", None)
    with pytest.raises(OSError, match="which this system does not have; use Linux, macOS"):
        is_free(tmp_path / "lock")
