"""Worker processes, forked (warm) and from nothing (cold): the same promises, however they end or are interrupted."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from emabank.study.executors import worker as worker_module
from emabank.study.executors.local import FORKS
from emabank.study.executors.worker import PARENT
from emabank.study.runs.reader import RunFolder
from tests.support import processes
from tests.support.processes import HEAD, SOURCE, is_alive, wait_until

pytestmark = pytest.mark.skipif(not FORKS, reason="workers are forked on Linux alone")
BOTH = pytest.mark.parametrize("warm", [(), ("small_worker",)], ids=["cold", "warm"])

# A worker's module that needs no torch: it notes by which process it is imported, and runs the code it is given.
MODULE = f"""
import os, sys
from pathlib import Path

def note(what):
    with open(Path(__file__).with_name("imports.txt"), "a") as notes:
        notes.write(f"{{what}} {{os.getpid()}} {{os.environ.get('TOLD')}}\\n")

note("module")

def main(arguments):
    sys.argv = [__file__, arguments[0]]
    names = {{"__name__": "worker"}}
    exec({HEAD!r} + arguments[1], names)
    return names.get("code", 0)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


class Executing:
    """An executor in a process of its own, whose workers are those of the module above, with code of their own."""

    def __init__(
        self,
        root: Path,
        codes: dict[str, str],
        *,
        warm: tuple[str, ...] = ("small_worker",),
        jobs: int = 2,
        before: str = "",
        **options: Any,
    ) -> None:
        self.root = root
        (root / "small_worker.py").write_text(MODULE)
        program = f"""
import json, os, signal, sys
from pathlib import Path
from emabank.study.executors import Task
from emabank.study.executors.local import LocalExecutor
root = Path({str(root)!r})
tasks = [
    Task(
        id=name,
        title=f"run {{name}}",
        folder=root / name,
        command=(sys.executable, "-m", "small_worker", str(root / name), code),
        environment={{"TOLD": name}},
    )
    for name, code in {codes!r}.items()
]
executor = LocalExecutor(jobs={jobs}, warm={warm}, **{ ({"poll": 0.02} | options)!r})
{before}
outcomes = executor.run_all(tasks)
told = {{o.task.id: [o.state, o.reason, list(o.log)] for o in outcomes}}
(root / "outcomes.json").write_text(json.dumps(told))
"""
        path = [str(root), SOURCE, str(Path(processes.__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            start_new_session=True,  # so that a signal can be sent to the whole group, as a terminal does
        )
        self.workers: list[int] = []

    def __enter__(self) -> "Executing":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            if is_alive(worker):
                os.kill(worker, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()

    def until_ready(self, names: str) -> None:
        """Wait until these workers have come so far."""
        wait_until(lambda: all((self.root / name / "ready").exists() for name in names))
        self.workers = [int((self.root / name / "pid").read_text()) for name in names]

    def ended(self) -> str:
        """Wait for the end; what was printed. Whatever was started is gone then: it held the pipe that is read here."""
        said, _ = self.process.communicate(timeout=120)
        assert not any(map(is_alive, self.workers)), "an orphan"
        return said


def run_workers(root: Path, codes: dict[str, str], **options: Any) -> tuple[dict[str, Any], str]:
    """What became of each worker: state, reason and the end of its log; and what was printed."""
    with Executing(root, codes, **options) as executing:
        said = executing.ended()
    assert executing.process.returncode == 0, said
    return json.loads((root / "outcomes.json").read_text()), said


def parent_of(worker: int) -> int:
    return int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])


def imported(root: Path) -> list[list[str]]:
    return [line.split() for line in (root / "imports.txt").read_text().splitlines()]


# How a worker ends ----------------------------------------------------------------------------------------------------

ENDS = {
    "done": "print('hello', folder.name); print('as an error', file=sys.stderr); done()",
    "three": "print('three'); code = 3",
    "exits": "sys.exit(4)",
    "says": "sys.exit('out of luck')",
    "nothing": "code = None",
    "raises": "def f(): raise ValueError('the rate is [too] high')\nf()",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "term": "os.kill(os.getpid(), signal.SIGTERM)",
    "interrupted": "print('before', flush=True); raise KeyboardInterrupt",
    "signalled": "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)",
    "abrupt": "print('no newline', end=''); sys.stdout.flush(); os._exit(5)",
}


def test_however_a_forked_worker_ends_the_outcome_is_that_of_a_process_started_from_nothing(tmp_path: Path):
    ends = {}
    for kind in ("warm", "cold"):
        (tmp_path / kind).mkdir()
        ends[kind], said = run_workers(tmp_path / kind, ENDS, warm=("small_worker",) if kind == "warm" else ())
        assert "Traceback" not in said.partition("runs failed:")[0]
    assert {name: told[:2] for name, told in ends["warm"].items()} == {
        name: told[:2] for name, told in ends["cold"].items()
    }
    assert ends["warm"]["done"][0] == "done"
    assert ends["warm"]["three"] == ["failed", "exit code 3", ["three"]]
    assert ends["warm"]["raises"][1] == "exit code 1"
    assert ends["warm"]["raises"][2][-1] == "ValueError: the rate is [too] high"
    assert ends["warm"]["killed"][1] == "killed by SIGKILL (possibly out of memory)"
    assert ends["warm"]["interrupted"][2][0] == "before"
    assert ends["warm"]["interrupted"][2][-1] == "KeyboardInterrupt"
    for name in ENDS:
        states = {RunFolder(tmp_path / kind / name).state() for kind in ("warm", "cold")}
        assert len(states) == 1, name
    for name, (_, _, log) in ends["warm"].items():
        assert log == ends["cold"][name][2] or name in ("raises", "interrupted", "signalled"), "tracebacks differ"
    assert not list(tmp_path.glob("*/*/core*"))


@BOTH
def test_what_a_worker_prints_is_at_the_end_of_its_log_at_once(tmp_path: Path, warm: tuple[str, ...]):
    code = """
print("first")
print("not on a terminal:", sys.stdout.isatty(), sys.stdin.read() == "")
os.write(1, b"past Python\\n")
if "first" in (folder / "log.txt").read_text(): done()
"""
    _, printed = run_workers(tmp_path, {"a": code}, warm=warm)
    lines = (tmp_path / "a" / "log.txt").read_text().splitlines()
    assert lines[0].startswith("--- 2") and lines[0].endswith(" run a")
    assert lines[1:] == ["first", "not on a terminal: False True", "past Python"]
    assert "first" not in printed


def test_the_surroundings_are_those_of_the_executor_and_the_task(tmp_path: Path):
    """As they are when the worker starts, not when the first one did."""
    code = """
seen = {name: os.environ.get(name) for name in ("TOLD", "CHANGED", "REMOVED", "EMABANK_EXECUTOR")}
leads = os.getsid(0) == os.getpgid(0) == os.getpid()
(folder / "seen.json").write_text(json.dumps([seen, os.getcwd(), leads, os.getppid()]))
done()
"""
    before = """
os.environ["REMOVED"] = "yes"
executor.run_all(tasks[:1])
os.environ["CHANGED"] = "yes"
del os.environ["REMOVED"]
(root / "elsewhere").mkdir()
os.chdir(root / "elsewhere")
"""
    told, _ = run_workers(tmp_path, {"a": code, "b": code}, before=before)
    assert [told[name][0] for name in "ab"] == ["already done", "done"]
    [first, cwd, leads, server] = json.loads((tmp_path / "a" / "seen.json").read_text())
    assert first == {"TOLD": "a", "CHANGED": None, "REMOVED": "yes", "EMABANK_EXECUTOR": str(server)}
    assert (cwd, leads) == (os.getcwd(), True)
    [second, cwd, leads, again] = json.loads((tmp_path / "b" / "seen.json").read_text())
    assert second == {"TOLD": "b", "CHANGED": "yes", "REMOVED": None, "EMABANK_EXECUTOR": str(server)}
    assert (cwd, leads, again) == (str(tmp_path / "elsewhere"), True, server)


# Warm ----------------------------------------------------------------------------------------------------------------


def test_the_module_and_torch_are_imported_once_for_all_workers(tmp_path: Path):
    """By a torch of the test's own, which notes who imports it."""
    (tmp_path / "torch").mkdir()
    for name in ("__init__", "_dynamo"):
        (tmp_path / "torch" / f"{name}.py").write_text(f"import small_worker\nsmall_worker.note('torch.{name}')")
    code = "import torch, torch._dynamo; (folder / 'server').write_text(str(os.getppid())); done()"
    codes = dict.fromkeys("abcd", code)
    told, _ = run_workers(tmp_path, codes, warm=("small_worker", "torch._dynamo"))
    assert {state for state, *_ in told.values()} == {"done"}
    servers = {(tmp_path / name / "server").read_text() for name in "abcd"}
    assert len(servers) == 1
    names = ("module", "torch.__init__", "torch._dynamo")
    assert imported(tmp_path) == [[name, *servers, "a"] for name in names], "with the variables of the first worker"
    assert len({(tmp_path / name / "pid").read_text() for name in "abcd"} | servers) == 5


def test_another_command_is_started_from_nothing(tmp_path: Path):
    before = "executor = LocalExecutor(warm=('small_worker.other',), poll=0.02)"
    told, _ = run_workers(tmp_path, {"a": "done()"}, before=before)
    assert told["a"][0] == "done"
    assert imported(tmp_path) == [["module", (tmp_path / "a" / "pid").read_text(), "a"]], "by the worker itself"


def test_where_no_worker_can_be_forked_they_start_from_nothing(tmp_path: Path):
    """A folder for temporary files whose path is too long for a socket, say."""
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    told, _ = run_workers(tmp_path, {"a": "done()"}, before=f"import tempfile; tempfile.tempdir = {str(deep)!r}")
    assert told["a"][0] == "done"


# Ctrl-C and worse ----------------------------------------------------------------------------------------------------

KIND = """
def stop(*_):
    (folder / "checkpoint").touch()
    sys.exit(130)
signal.signal(signal.SIGINT, stop)
(folder / "ready").touch()
while True: time.sleep(0.05)
"""
DEAF = """
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, lambda *_: (folder / "asked").touch())
(folder / "ready").touch()
while True: time.sleep(0.05)
"""
WATCHFUL = "from emabank.study.executors.worker import stop_with_executor\nstop_with_executor(every=0.05)\n" + KIND


@BOTH
@pytest.mark.parametrize("whole_group", [False, True], ids=["the executor alone", "as a terminal does"])
def test_ctrl_c_gives_workers_time_for_a_checkpoint(tmp_path: Path, whole_group: bool, warm: tuple[str, ...]):
    with Executing(tmp_path, dict.fromkeys("abc", KIND), warm=warm) as executing:
        executing.until_ready("ab")
        (os.killpg if whole_group else os.kill)(executing.process.pid, signal.SIGINT)
        said = executing.ended()
    assert all((tmp_path / name / "checkpoint").exists() for name in "ab")
    assert not (tmp_path / "c").exists()
    assert "interrupted: 0 of 3 runs ended, the same command resumes the rest" in said
    assert said.count("Traceback") == 1 and said.rstrip().endswith("KeyboardInterrupt")
    assert executing.process.returncode == -signal.SIGINT
    assert RunFolder(tmp_path / "a").state() == "waiting"


def test_ctrl_c_while_the_first_worker_is_still_warming_up_is_no_trouble(tmp_path: Path):
    """The process that imports is in the terminal's group too."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("""
import pathlib, time
here, until = pathlib.Path(__file__).parents[1], time.monotonic() + 60
(here / "importing").touch()
while not (here / "go").exists() and time.monotonic() < until: time.sleep(0.02)
""")
    with Executing(tmp_path, {"a": KIND}, warm=("small_worker", "torch")) as executing:
        wait_until((tmp_path / "importing").exists)
        os.killpg(executing.process.pid, signal.SIGINT)
        (tmp_path / "go").touch()
        said = executing.ended()
    assert said.count("Traceback") == 1 and said.rstrip().endswith("KeyboardInterrupt"), said
    assert executing.process.returncode == -signal.SIGINT
    assert RunFolder(tmp_path / "a").state() == "waiting"


def test_an_interrupt_that_comes_before_the_worker_is_ready_is_not_lost(tmp_path: Path):
    """Neither to its group, which it does not lead at once, nor as a failure."""
    before = """
import signal, time
from emabank.study.executors.local import _Job
for task in tasks:
    job = _Job(task, warm=executor.warm)
    job.send(signal.SIGINT)
    while job.process.poll() is None: time.sleep(0.01)
    (root / f"{task.id}.txt").write_text(str(job.process.returncode))
tasks = []
"""
    code = "(folder / 'began').touch(); time.sleep(60); done()"
    run_workers(tmp_path, dict.fromkeys("abc", code), before=before)
    for name in "abc":
        assert (tmp_path / f"{name}.txt").read_text() == str(-signal.SIGINT)
        assert (tmp_path / name / "log.txt").read_text().endswith("KeyboardInterrupt\n")


@BOTH
def test_ctrl_c_pressed_again_hastens_the_end(tmp_path: Path, warm: tuple[str, ...]):
    with Executing(tmp_path, dict.fromkeys("ab", DEAF), grace=600, warm=warm) as executing:
        executing.until_ready("ab")
        for _ in ("SIGINT", "SIGTERM"):
            executing.process.send_signal(signal.SIGINT)
            asked = [tmp_path / name / "asked" for name in "ab"]
            wait_until(lambda asked=asked: all(path.exists() for path in asked))
            assert all(map(is_alive, executing.workers))
            for path in asked:
                path.unlink()
        executing.process.send_signal(signal.SIGINT)
        executing.ended()
    assert executing.process.returncode == -signal.SIGINT


@BOTH
def test_deaf_workers_are_killed_when_their_time_is_over(tmp_path: Path, warm: tuple[str, ...]):
    soon = "from emabank.study.executors import local; local._AFTER_SIGTERM = 0.1"
    with Executing(tmp_path, dict.fromkeys("ab", DEAF), grace=0.1, warm=warm, before=soon) as executing:
        executing.until_ready("ab")
        executing.process.send_signal(signal.SIGINT)
        executing.ended()
    assert executing.process.returncode == -signal.SIGINT


@BOTH
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_workers_notice_when_the_executor_was_killed(tmp_path: Path, number: signal.Signals, warm: tuple[str, ...]):
    with Executing(tmp_path, dict.fromkeys("abc", WATCHFUL), warm=warm) as executing:
        executing.until_ready("ab")
        servers = {parent_of(worker) for worker in executing.workers}
        executing.process.send_signal(number)
        executing.process.wait(timeout=60)
        wait_until(lambda: not any(map(is_alive, executing.workers)))
        wait_until(lambda: not any(map(is_alive, servers)))
        executing.ended()
    assert all((tmp_path / name / "checkpoint").exists() for name in "ab")
    assert "the executor that started this process is gone" in (tmp_path / "a" / "log.txt").read_text()


def test_workers_notice_when_the_process_they_were_forked_from_was_killed(tmp_path: Path):
    with Executing(tmp_path, {"a": WATCHFUL, "b": "done()"}, jobs=1) as executing:
        executing.until_ready("a")
        [worker] = executing.workers
        os.kill(parent_of(worker), signal.SIGKILL)
        executing.ended()
    assert (tmp_path / "a" / "checkpoint").exists()
    told = json.loads((tmp_path / "outcomes.json").read_text())
    assert (told["a"][0], told["b"][0]) == ("failed", "done"), "the next one is forked from another"


# One worker alone -----------------------------------------------------------------------------------------------------

ALONE = """
import os, signal, sys, time
from emabank.study.executors.worker import PARENT, stop_with_executor
"""


GONE = 1 if os.getpid() != 1 else 2  # no executor of ours


def run(code: str, *, executor: int | None) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    if executor is not None:
        environment[PARENT] = str(executor)
    command = [sys.executable, "-c", ALONE + code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("executor", [os.getpid(), None], ids=["its executor runs", "started by hand"])
def test_nothing_happens_as_long_as(executor: int | None):
    code = "stop_with_executor(every=0.01, grace=0); time.sleep(0.3); print(PARENT in os.environ)"
    finished = run(code, executor=executor)
    assert (finished.returncode, finished.stdout) == (0, "False\n"), finished.stderr


def test_an_executor_that_was_gone_before_interrupts_as_ctrl_c_would():
    code = "try: stop_with_executor(); time.sleep(60)\nexcept KeyboardInterrupt: print('checkpoint written')"
    finished = run(code, executor=GONE)
    assert (finished.returncode, finished.stdout) == (0, "checkpoint written\n"), finished.stderr
    assert "the executor that started this process is gone" in finished.stderr


def test_a_deaf_worker_is_killed():
    code = "signal.signal(signal.SIGINT, lambda *_: None); stop_with_executor(grace=0.1)\nwhile True: time.sleep(60)"
    assert run(code, executor=GONE).returncode == -signal.SIGKILL


def test_an_ignored_interrupt_is_heard_again():
    code = "signal.signal(signal.SIGINT, signal.SIG_IGN); stop_with_executor(grace=60)\ntime.sleep(60)"
    assert run(code, executor=GONE).returncode == -signal.SIGINT


# Memory ---------------------------------------------------------------------------------------------------------------

FAULTS = """
import resource, sys
from emabank.study.executors.worker import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def fill():
    [b"x" * 8_000_000 for _ in range(10)]  # as the activations of a few layers
for _ in range(20):  # the heap finds its shape
    fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc is asked for")
def test_memory_that_was_freed_is_not_fetched_again():
    # How much is given back is chance otherwise: it depends on what lies at the top of the heap.
    generous = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}

    def faults(how: str) -> int:
        command = [sys.executable, "-c", FAULTS, how]
        return int(subprocess.run(command, check=True, capture_output=True, text=True, env=generous).stdout)

    left = faults("leave")
    assert left > 1000  # or there would be nothing to gain
    assert faults("keep") < left / 4


def test_a_system_without_it_or_that_refuses_is_believed(monkeypatch: pytest.MonkeyPatch):
    for library in (object(), SimpleNamespace(mallopt=lambda parameter, value: 0)):
        monkeypatch.setattr(worker_module.ctypes, "CDLL", lambda name, library=library: library)
        assert not worker_module.keep_freed_memory()
