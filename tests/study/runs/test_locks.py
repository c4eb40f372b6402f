"""A lock keeps other processes out, says who holds it, and never outlives its holder."""

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
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def holder(path: Path, inside: str = "pass") -> "Generator[subprocess.Popen[str]]":
    """Another process that holds the lock until it is told to end, or killed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD.format(inside=inside), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def free(path: Path) -> bool:
    try:
        with locked(path, what="run a"):
            return True
    except LockedError:
        return False


def test_a_second_process_is_told_who_holds_it_where_and_since_when(tmp_path: Path):
    path = tmp_path / "lock"
    with holder(path) as process:
        assert is_locked(path)
        with pytest.raises(LockedError) as caught, locked(path, what="run a"):
            pass
        who = f"process {process.pid} on {socket.gethostname()}"
        assert str(caught.value).startswith(f"run a is in use by {who} since 2")
        assert str(caught.value).endswith(" UTC; wait until it has ended, or end it")
        process.communicate("end\n", timeout=60)
    assert not is_locked(path)
    assert free(path)


def test_kill_9_frees_it_at_once_and_leaves_nothing_to_clean_up(tmp_path: Path):
    path = tmp_path / "lock"
    for _ in range(3):
        with holder(path) as process:
            assert not free(path)
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=60)
            assert not is_locked(path)
            assert free(path)


@pytest.mark.parametrize(
    "child",
    [
        "import os, time; child = os.fork(); child or time.sleep(60); print(child)",
        "import subprocess; print(subprocess.Popen(['sleep', '60'], close_fds=False, stdout=2).pid)",
    ],
    ids=["fork", "subprocess with all descriptors"],
)
def test_children_of_the_holder_do_not_keep_it(tmp_path: Path, child: str):
    path = tmp_path / "lock"
    note = child.replace("print(", f"open({str(tmp_path / 'child')!r}, 'w').write(str(").rstrip() + ")"
    with holder(path, note) as process:
        children = int((tmp_path / "child").read_text())
        try:
            process.kill()
            process.wait(timeout=60)
            os.kill(children, 0)  # the child is still there
            assert free(path)
        finally:
            os.kill(children, signal.SIGKILL)


def test_a_forked_child_that_leaves_the_context_frees_nothing(tmp_path: Path):
    path = tmp_path / "lock"
    inside = "import os; child = os.fork()\n    if not child: sys.exit()\n    os.waitpid(child, 0)"
    with holder(path, inside):
        assert not free(path)


def test_one_process_cannot_hold_it_twice_and_frees_it_on_an_exception(tmp_path: Path):
    path = tmp_path / "lock"
    with pytest.raises(KeyError), locked(path, what="run a"):
        with pytest.raises(LockedError, match=f"process {os.getpid()} "), locked(path, what="run a"):
            pass
        raise KeyError("x")
    assert free(path)


def test_who_wants_the_lock_waits_for_those_who_only_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(locks, "PATIENCE", 60)
    with open(tmp_path / "lock", "w") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)  # as is_locked does, for an instant
        threading.Timer(0.1, fcntl.flock, (asking, fcntl.LOCK_UN)).start()
        assert free(tmp_path / "lock")


def test_asking_makes_no_file(tmp_path: Path):
    assert not is_locked(tmp_path / "lock")
    assert not list(tmp_path.iterdir())


def test_a_holder_that_could_not_sign_is_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with (
        locked(tmp_path / "lock", what="run a"),
        pytest.raises(LockedError, match="in use by another process"),
        locked(tmp_path / "lock", what="run a"),
    ):
        pass


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Refusing:
        LOCK_EX = LOCK_SH = LOCK_NB = 0

        @staticmethod
        def flock(*_: object) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks, "fcntl", Refusing)
    with pytest.raises(OSError, match="cannot be locked .No locks available.; keep the runs on") as caught:
        free(tmp_path / "lock")
    assert caught.value.filename == str(tmp_path / "lock")
    monkeypatch.setattr(locks, "fcntl", None)
    with pytest.raises(OSError, match="which this system does not have; use Linux, macOS"):
        free(tmp_path / "lock")
