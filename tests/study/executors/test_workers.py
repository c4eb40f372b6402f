"""Worker processes, forked (warm) or started anew (cold), behave the same however they end or are interrupted."""

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

# A worker module without torch: it records which process imports it, and runs the code of its arguments.
MODULE = f"""
import os, sys
from pathlib import Path

def note(name):
    with open(Path(__file__).with_name("imports.txt"), "a") as notes:
        notes.write(f"{{name}} {{os.getpid()}} {{os.environ.get('TASK')}}\\n")

note("module")

def main(arguments):
    sys.argv = [__file__, arguments[0]]
    names = {{"__name__": "worker"}}
    exec({HEAD!r} + arguments[1], names)
    return names.get("code", 0)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


class ExecutorProcess:
    """An executor in its own process, whose workers run the given code in the module above."""

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
        environment={{"TASK": name}},
    )
    for name, code in {codes!r}.items()
]
executor = LocalExecutor(jobs={jobs}, warm={warm}, **{ ({"poll": 0.02} | options)!r})
{before}
outcomes = executor.run_all(tasks)
content = {{o.task.id: [o.state, o.reason, list(o.log)] for o in outcomes}}
(root / "outcomes.json").write_text(json.dumps(content))
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

    def __enter__(self) -> "ExecutorProcess":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            if is_alive(worker):
                os.kill(worker, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()

    def until_ready(self, names: str) -> None:
        """Wait until these workers are ready."""
        wait_until(lambda: all((self.root / name / "ready").exists() for name in names))
        self.workers = [int((self.root / name / "pid").read_text()) for name in names]

    def wait(self) -> str:
        """Wait for the end and return the output; all workers must have ended, since they share the pipe."""
        output, _ = self.process.communicate(timeout=120)
        assert not any(map(is_alive, self.workers)), "an orphan"
        return output


def run_workers(root: Path, codes: dict[str, str], **options: Any) -> tuple[dict[str, Any], str]:
    """The outcome of each worker (state, reason, last lines of its log), and the printed output."""
    with ExecutorProcess(root, codes, **options) as executor:
        output = executor.wait()
    assert executor.process.returncode == 0, output
    return json.loads((root / "outcomes.json").read_text()), output


def parent_of(worker: int) -> int:
    return int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])


def imports_in(root: Path) -> list[list[str]]:
    return [line.split() for line in (root / "imports.txt").read_text().splitlines()]


# Ends of a worker -----------------------------------------------------------------------------------------------------

ENDS = {
    "done": "print('hello', folder.name); print('as an error', file=sys.stderr); done()",
    "three": "print('three'); code = 3",
    "exits": "sys.exit(4)",
    "message": "sys.exit('out of luck')",
    "nothing": "code = None",
    "raises": "def f(): raise ValueError('the rate is [too] high')\nf()",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "term": "os.kill(os.getpid(), signal.SIGTERM)",
    "interrupted": "print('before', flush=True); raise KeyboardInterrupt",
    "signalled": "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)",
    "abrupt": "print('no newline', end=''); sys.stdout.flush(); os._exit(5)",
}


def test_forked_workers_have_the_outcomes_of_newly_started_processes(tmp_path: Path):
    ends = {}
    for kind in ("warm", "cold"):
        (tmp_path / kind).mkdir()
        ends[kind], output = run_workers(tmp_path / kind, ENDS, warm=("small_worker",) if kind == "warm" else ())
        assert "Traceback" not in output.partition("runs failed:")[0]
    warm, cold = ({name: outcome[:2] for name, outcome in ends[kind].items()} for kind in ("warm", "cold"))
    assert warm == cold
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
def test_the_output_of_a_worker_goes_to_its_log_at_once(tmp_path: Path, warm: tuple[str, ...]):
    code = """
print("first")
print("not on a terminal:", sys.stdout.isatty(), sys.stdin.read() == "")
os.write(1, b"unbuffered\\n")
if "first" in (folder / "log.txt").read_text(): done()
"""
    _, output = run_workers(tmp_path, {"a": code}, warm=warm)
    lines = (tmp_path / "a" / "log.txt").read_text().splitlines()
    assert lines[0].startswith("--- 2") and lines[0].endswith(" run a")
    assert lines[1:] == ["first", "not on a terminal: False True", "unbuffered"]
    assert "first" not in output


def test_a_worker_has_the_environment_of_its_executor_and_task_at_its_start(tmp_path: Path):
    code = """
seen = {name: os.environ.get(name) for name in ("TASK", "CHANGED", "REMOVED", "EMABANK_EXECUTOR")}
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
    outcomes, _ = run_workers(tmp_path, {"a": code, "b": code}, before=before)
    assert [outcomes[name][0] for name in "ab"] == ["already done", "done"]
    [first, cwd, leads, server] = json.loads((tmp_path / "a" / "seen.json").read_text())
    assert first == {"TASK": "a", "CHANGED": None, "REMOVED": "yes", "EMABANK_EXECUTOR": str(server)}
    assert (cwd, leads) == (os.getcwd(), True)
    [second, cwd, leads, again] = json.loads((tmp_path / "b" / "seen.json").read_text())
    assert second == {"TASK": "b", "CHANGED": "yes", "REMOVED": None, "EMABANK_EXECUTOR": str(server)}
    assert (cwd, leads, again) == (str(tmp_path / "elsewhere"), True, server)


# Warm ----------------------------------------------------------------------------------------------------------------


def test_the_module_and_torch_are_imported_once_for_all_workers(tmp_path: Path):
    """With a fake torch that records which process imports it."""
    (tmp_path / "torch").mkdir()
    for name in ("__init__", "_dynamo"):
        (tmp_path / "torch" / f"{name}.py").write_text(f"import small_worker\nsmall_worker.note('torch.{name}')")
    code = "import torch, torch._dynamo; (folder / 'server').write_text(str(os.getppid())); done()"
    codes = dict.fromkeys("abcd", code)
    outcomes, _ = run_workers(tmp_path, codes, warm=("small_worker", "torch._dynamo"))
    assert {state for state, *_ in outcomes.values()} == {"done"}
    servers = {(tmp_path / name / "server").read_text() for name in "abcd"}
    assert len(servers) == 1
    names = ("module", "torch.__init__", "torch._dynamo")
    assert imports_in(tmp_path) == [[name, *servers, "a"] for name in names], "with the environment of the first worker"
    assert len({(tmp_path / name / "pid").read_text() for name in "abcd"} | servers) == 5


def test_a_command_of_another_module_starts_a_new_process(tmp_path: Path):
    before = "executor = LocalExecutor(warm=('small_worker.other',), poll=0.02)"
    outcomes, _ = run_workers(tmp_path, {"a": "done()"}, before=before)
    assert outcomes["a"][0] == "done"
    assert imports_in(tmp_path) == [["module", (tmp_path / "a" / "pid").read_text(), "a"]], "by the worker itself"


def test_workers_that_cannot_be_forked_start_as_new_processes(tmp_path: Path):
    """Here the path of the temporary folder is too long for a socket."""
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    outcomes, _ = run_workers(tmp_path, {"a": "done()"}, before=f"import tempfile; tempfile.tempdir = {str(deep)!r}")
    assert outcomes["a"][0] == "done"


# Ctrl-C and worse ----------------------------------------------------------------------------------------------------

COOPERATIVE = """
def stop(*_):
    (folder / "checkpoint").touch()
    sys.exit(130)
signal.signal(signal.SIGINT, stop)
(folder / "ready").touch()
while True: time.sleep(0.05)
"""
STUBBORN = """
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, lambda *_: (folder / "asked").touch())
(folder / "ready").touch()
while True: time.sleep(0.05)
"""
WATCHFUL = (
    "from emabank.study.executors.worker import stop_with_executor\nstop_with_executor(every=0.05)\n" + COOPERATIVE
)


@BOTH
@pytest.mark.parametrize("whole_group", [False, True], ids=["the executor alone", "as a terminal does"])
def test_ctrl_c_gives_workers_time_for_a_checkpoint(tmp_path: Path, whole_group: bool, warm: tuple[str, ...]):
    with ExecutorProcess(tmp_path, dict.fromkeys("abc", COOPERATIVE), warm=warm) as executor:
        executor.until_ready("ab")
        (os.killpg if whole_group else os.kill)(executor.process.pid, signal.SIGINT)
        output = executor.wait()
    assert all((tmp_path / name / "checkpoint").exists() for name in "ab")
    assert not (tmp_path / "c").exists()
    assert "interrupted: 0 of 3 runs have ended; the same command resumes the rest" in output
    assert output.count("Traceback") == 1 and output.rstrip().endswith("KeyboardInterrupt")
    assert executor.process.returncode == -signal.SIGINT
    assert RunFolder(tmp_path / "a").state() == "waiting"


def test_ctrl_c_while_the_first_worker_is_still_importing_ends_cleanly(tmp_path: Path):
    """The importing process is in the terminal's process group too."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("""
import pathlib, time
here, until = pathlib.Path(__file__).parents[1], time.monotonic() + 60
(here / "importing").touch()
while not (here / "go").exists() and time.monotonic() < until: time.sleep(0.02)
""")
    with ExecutorProcess(tmp_path, {"a": COOPERATIVE}, warm=("small_worker", "torch")) as executor:
        wait_until((tmp_path / "importing").exists)
        os.killpg(executor.process.pid, signal.SIGINT)
        (tmp_path / "go").touch()
        output = executor.wait()
    assert output.count("Traceback") == 1 and output.rstrip().endswith("KeyboardInterrupt"), output
    assert executor.process.returncode == -signal.SIGINT
    assert RunFolder(tmp_path / "a").state() == "waiting"


def test_an_interrupt_before_the_worker_is_ready_is_not_lost(tmp_path: Path):
    """A worker leads its own process group only after a moment."""
    before = """
import signal, time
from emabank.study.executors.local import _Job
for task in tasks:
    job = _Job(task, warm=executor.warm)
    job.send(signal.SIGINT)
    while job.process.poll() is None: time.sleep(0.01)
    (root / f"{task.id}.txt").write_text(str(job.process.poll()))
tasks = []
"""
    code = "(folder / 'began').touch(); time.sleep(60); done()"
    run_workers(tmp_path, dict.fromkeys("abc", code), before=before)
    for name in "abc":
        assert (tmp_path / f"{name}.txt").read_text() == str(-signal.SIGINT)
        assert (tmp_path / name / "log.txt").read_text().endswith("KeyboardInterrupt\n")


@BOTH
def test_ctrl_c_pressed_again_escalates_to_sigterm_and_sigkill(tmp_path: Path, warm: tuple[str, ...]):
    with ExecutorProcess(tmp_path, dict.fromkeys("ab", STUBBORN), grace=600, warm=warm) as executor:
        executor.until_ready("ab")
        for _ in ("SIGINT", "SIGTERM"):
            executor.process.send_signal(signal.SIGINT)
            asked = [tmp_path / name / "asked" for name in "ab"]
            wait_until(lambda asked=asked: all(path.exists() for path in asked))
            assert all(map(is_alive, executor.workers))
            for path in asked:
                path.unlink()
        executor.process.send_signal(signal.SIGINT)
        executor.wait()
    assert executor.process.returncode == -signal.SIGINT


@BOTH
def test_workers_that_ignore_signals_are_killed_after_the_grace_period(tmp_path: Path, warm: tuple[str, ...]):
    soon = "from emabank.study.executors import local; local._AFTER_SIGTERM = 0.1"
    with ExecutorProcess(tmp_path, dict.fromkeys("ab", STUBBORN), grace=0.1, warm=warm, before=soon) as executor:
        executor.until_ready("ab")
        executor.process.send_signal(signal.SIGINT)
        executor.wait()
    assert executor.process.returncode == -signal.SIGINT


@BOTH
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_workers_stop_when_the_executor_is_killed(tmp_path: Path, number: signal.Signals, warm: tuple[str, ...]):
    with ExecutorProcess(tmp_path, dict.fromkeys("abc", WATCHFUL), warm=warm) as executor:
        executor.until_ready("ab")
        servers = {parent_of(worker) for worker in executor.workers}
        executor.process.send_signal(number)
        executor.process.wait(timeout=60)
        wait_until(lambda: not any(map(is_alive, executor.workers)))
        wait_until(lambda: not any(map(is_alive, servers)))
        executor.wait()
    assert all((tmp_path / name / "checkpoint").exists() for name in "ab")
    assert "the executor that started this process is gone" in (tmp_path / "a" / "log.txt").read_text()


def test_workers_stop_when_the_process_they_were_forked_from_is_killed(tmp_path: Path):
    with ExecutorProcess(tmp_path, {"a": WATCHFUL, "b": "done()"}, jobs=1) as executor:
        executor.until_ready("a")
        [worker] = executor.workers
        os.kill(parent_of(worker), signal.SIGKILL)
        executor.wait()
    assert (tmp_path / "a" / "checkpoint").exists()
    outcomes = json.loads((tmp_path / "outcomes.json").read_text())
    assert (outcomes["a"][0], outcomes["b"][0]) == ("failed", "done"), "the next worker is forked from a new process"


# A single worker ------------------------------------------------------------------------------------------------------

ALONE = """
import os, signal, sys, time
from emabank.study.executors.worker import PARENT, stop_with_executor
"""


GONE = 1 if os.getpid() != 1 else 2  # not our executor


def run(code: str, *, executor: int | None) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    if executor is not None:
        environment[PARENT] = str(executor)
    command = [sys.executable, "-c", ALONE + code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("executor", [os.getpid(), None], ids=["its executor runs", "started by hand"])
def test_a_worker_runs_on_while_its_executor_runs_or_if_it_has_none(executor: int | None):
    code = "stop_with_executor(every=0.01, grace=0); time.sleep(0.3); print(PARENT in os.environ)"
    finished = run(code, executor=executor)
    assert (finished.returncode, finished.stdout) == (0, "False\n"), finished.stderr


def test_a_worker_that_ignores_the_interrupt_is_killed():
    code = "signal.signal(signal.SIGINT, lambda *_: None); stop_with_executor(grace=0.1)\nwhile True: time.sleep(60)"
    assert run(code, executor=GONE).returncode == -signal.SIGKILL


def test_a_worker_started_with_sigint_ignored_is_still_interrupted():
    code = "signal.signal(signal.SIGINT, signal.SIG_IGN); stop_with_executor(grace=60)\ntime.sleep(60)"
    assert run(code, executor=GONE).returncode == -signal.SIGINT


# Memory ---------------------------------------------------------------------------------------------------------------

FAULTS = """
import resource, sys
from emabank.study.executors.worker import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def fill():
    [b"x" * 8_000_000 for _ in range(10)]  # like the activations of a few layers
for _ in range(20):  # until the heap is stable
    fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc is asked for")
def test_freed_memory_is_reused_without_page_faults():
    # Otherwise it depends on the heap's layout how much is returned to the system.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}

    def count_faults(mode: str) -> int:
        command = [sys.executable, "-c", FAULTS, mode]
        return int(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)

    default = count_faults("default")
    assert default > 1000, "control"
    assert count_faults("keep") < default / 4


def test_keep_freed_memory_is_false_without_mallopt_or_if_it_fails(monkeypatch: pytest.MonkeyPatch):
    for library in (object(), SimpleNamespace(mallopt=lambda parameter, value: 0)):
        monkeypatch.setattr(worker_module.ctypes, "CDLL", lambda name, library=library: library)
        assert not worker_module.keep_freed_memory()
