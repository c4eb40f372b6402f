"""The commands `run` and `protocol`, also as real processes that are killed, interrupted and restarted."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from emabank.study import launch
from emabank.study.commands import main
from emabank.study.config import DataConfig, HardwareConfig, Place, ProtocolConfig, TrainingConfig
from emabank.study.executors import Outcome, Task
from emabank.study.executors.local import LocalExecutor
from emabank.study.launch import executor_for, jobs_on, launch_protocol
from emabank.study.protocol import resolve, tuning_jobs
from emabank.study.report.results import read_setting
from emabank.study.run_job import Job, folder_of, run_job, task_of
from emabank.study.serialize import read_toml
from tests.study.studies.small_studies import manifests, run_arguments, runs_in
from tests.support.processes import SOURCE, is_alive, wait_until

CONFIG = ProtocolConfig(
    data=DataConfig(subset=200, test_subset=100),
    training=TrainingConfig(width=4, epochs=8),
    hardware=HardwareConfig(device="cpu"),
    rates=(0.1,),
    seeds=2,
    swa=False,
)
WORDS = ["--subset", "200", "--test-subset", "100", "--width", "4", "--epochs", "8", "--device", "cpu"]
WORDS += ["--rates", "0.1", "--seeds", "2", "--no-swa"]
SETTING = "digits, 200 images, ResNet-8 of width 4"

STUDY = ["run", "constant-lr", "--seeds", "2", "--device", "cpu"]
SETTINGS = ["epochs=8", "warmup_epochs=0.5", "subset=200", "test_subset=30", "width=4", "batch=32", "rates=[0.1]"]
STUDIED = "digits, 40% of 200 with wrong labels, ResNet-8 of width 4"


class Command:
    """`emabank` in its own process, with its messages read while it runs."""

    def __init__(self, words: Sequence[str], runs: Path) -> None:
        self.result = runs.parent / "result.txt"
        with open(self.result, "w") as result:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "emabank.study", *words, "--runs", str(runs), "--jobs", "2"],
                stdout=result,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": SOURCE, "PYTHONUNBUFFERED": "1", "COLUMNS": "100"},
            )
        self.lines: list[str] = []
        self.workers: set[int] = set()
        self.descendants: set[int] = set()

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()  # its workers notice
        self.process.communicate()

    def read_until(self, text: str) -> None:
        """Read lines until one has this text, and remember the workers seen meanwhile."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            self.running_workers()
            if text in line:
                return
        raise AssertionError(f"no line has {text!r}: {self.lines}")

    def finish(self) -> int:
        """Read all lines, wait until no process is alive, and return the exit code."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            self.running_workers()
        code = self.process.wait(timeout=120)
        wait_until(lambda: not any(is_alive(process) for process in self.workers | self.descendants))
        return code

    def running_workers(self) -> set[int]:
        """Workers lead sessions; the child that they are forked from does not."""
        descendants = children(self.process.pid)
        descendants |= {process for child in descendants for process in children(child)}
        workers = {process for process in descendants if leads_session(process)}
        self.workers |= workers
        self.descendants |= descendants
        return workers


def children(pid: int) -> set[int]:
    try:
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except (FileNotFoundError, ProcessLookupError):
        return set()


def leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at processes through /proc")
def test_a_killed_and_interrupted_study_resumes_to_the_undisturbed_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    place, study = Place(runs=tmp_path / "runs"), [*STUDY, "--set", *SETTINGS]

    with Command(study, place.runs) as first:  # a worker is killed, as when memory runs out
        first.read_until("tune, rate 0.1, seed 0")
        wait_until(lambda: bool(first.running_workers()))
        os.kill(min(first.workers), signal.SIGKILL)
        assert first.finish() == 1
    report = first.lines[first.lines.index("1 of 2 runs failed:") :]
    seed = int(report[1].partition("seed ")[2][0])  # the first worker may have either seed
    assert report[1] == f"- {STUDIED}: tune, rate 0.1, seed {seed}: killed by SIGKILL (possibly out of memory)"
    assert any(line.startswith("done in") and f"seed {1 - seed}" in line for line in first.lines)
    log = report[-2].removeprefix("  log: ")
    assert report[-1] == (
        "constant-lr could not be finished: cifar100n-resnet18: 1 of 2 runs failed, the first with killed by SIGKILL "
        f"(possibly out of memory): {STUDIED}: tune, rate 0.1, seed {seed}; see {log}, then start it again"
    )
    assert Path(log).exists() and Path(log).is_relative_to(place.runs)
    assert manifests(place)["constant-lr"].state == "failed"

    with Command(study, place.runs) as second:  # the command is killed during the refits
        second.read_until(": refit, rate 0.1, seed 1")
        second.process.kill()
        second.finish()
    assert [line for line in second.lines if "already done" in line] == [
        f"already done: {STUDIED}: tune, rate 0.1, seed {1 - seed} [1 of 6]"
    ]
    assert manifests(place)["constant-lr"].state == "running"
    done = {run: (place.runs / run / "done.json").stat().st_mtime_ns for run in runs_in(place)}
    assert len(done) >= 2, "tuning is over"

    with Command(study, place.runs) as third:  # Ctrl-C during the runs that start from refits
        third.read_until(f"started: {STUDIED}: rate held from epoch")
        wait_until(lambda: bool(third.running_workers()))  # on a busy machine they start later than the line says
        third.process.send_signal(signal.SIGINT)
        assert third.finish() == 130
    assert third.workers
    assert third.lines[-1] == "emabank: interrupted; the same command resumes"
    assert not list(place.runs.glob("protocol-*"))

    with Command(study, place.runs) as fourth:
        assert fourth.finish() == 0, fourth.lines
    assert fourth.lines[-1].endswith("[6 of 6]"), "one total for all rounds"
    *table, done_line, following = fourth.result.read_text().splitlines()
    assert "rate held" in " ".join(table), "the output ends with the result"
    assert done_line == "done: constant-lr" and f"`emabank report {os.path.relpath(place.runs)}`" in following
    manifest = manifests(place)["constant-lr"]
    assert manifest.state == "done" and len(runs_in(place)) == 6
    now = {run: (place.runs / run / "done.json").stat().st_mtime_ns for run in done}
    assert now == done, "finished runs are not trained again"

    elsewhere = run_arguments([*STUDY, "--runs", str(tmp_path / "undisturbed"), "--set", *SETTINGS])
    assert runs_in(place) == runs_in(elsewhere)
    [pair] = manifest.pairs
    for name in (f"{pair.protocol}/summary.json", f"{pair.protocol}/rows.jsonl", *map("{}/rows.jsonl".format, now)):
        assert (place.runs / name).read_bytes() == (elsewhere.runs / name).read_bytes()

    ended = {path: path.stat().st_mtime_ns for path in place.runs.glob("*/done.json")}
    capsys.readouterr()
    assert main([*study, "--runs", str(place.runs), "--jobs", "2"]) == 0
    output = capsys.readouterr()
    assert "started: " not in output.err and "done: constant-lr" in output.out
    assert {path: path.stat().st_mtime_ns for path in place.runs.glob("*/done.json")} == ended


# In this process -----------------------------------------------------------------------------------------------------


def test_a_dry_run_trains_nothing_and_prints_a_configuration_that_can_be_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    half_lives = tuple(0.1 + i / 7 for i in range(12))
    arguments = [*WORDS, "--half-lives", *map(str, half_lives), "--runs", str(tmp_path / "runs")]
    assert main(["protocol", *arguments, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
    assert [line.partition(":")[0] for line in text.splitlines() if line.startswith("#")][:2] == [
        "# tune, rate 0.1, seed 0",
        "# tune, rate 0.1, seed 1",
    ]
    assert text.count("waiting") == 2
    assert "# then 2 refits, with what these choose" in text
    [line] = [line for line in text.splitlines() if line.startswith("half_lives")]
    assert len(line) > 100 and line.endswith("]"), "long lines are not wrapped"
    (tmp_path / "plan.toml").write_text(text)
    read = read_toml(tmp_path / "plan.toml", ProtocolConfig)
    assert read == resolve(replace(CONFIG, averages=replace(CONFIG.averages, half_lives=half_lives)))
    again = ["protocol", "--config", str(tmp_path / "plan.toml"), "--runs", str(tmp_path / "runs"), "--dry-run"]
    assert main(again) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("hardware", "jobs", "expected"),
    [
        ([("cpu", 1)], None, 8),
        ([("cpu", 9)], None, 1),
        ([("cpu", 1), ("cpu", 3)], None, 2),  # the run with the most threads limits
        ([("cpu", 3)], 5, 5),
        ([("cuda", 1), ("cpu", 1)], None, 1),
        ([("cuda", 1)], 2, 2),
        ([], 3, 3),
    ],
)
def test_concurrent_runs_depend_on_cores_and_threads_unless_jobs_is_set(
    monkeypatch: pytest.MonkeyPatch, hardware: list[tuple[Any, int]], jobs: int | None, expected: int
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    executor = executor_for([HardwareConfig(device=device, threads=n) for device, n in hardware], Place(jobs=jobs))
    assert isinstance(executor, LocalExecutor) and executor.jobs == expected
    assert executor.warm == (() if ("cuda", 1) in hardware else ("emabank.study.run_job", "torch._dynamo"))


class FakeExecutor:
    """An executor that runs nothing and records its tasks."""

    jobs = 1

    def run_all(self, tasks: Sequence[Task], **_: Any) -> list[Outcome]:
        self.tasks = tasks
        return [Outcome(task=task, state="done") for task in tasks]


def test_a_job_becomes_a_task_with_its_threads_and_absolute_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    config = resolve(replace(CONFIG, hardware=HardwareConfig(device="cpu", threads=3)))
    jobs, executor = tuning_jobs(config, data="abc"), FakeExecutor()
    place = Place(runs=Path("runs"), data=Path("data"))
    outcomes = jobs_on(executor, place, Console(file=io.StringIO()))(jobs, before=0, total=2)
    folders = [folder_of(job.config, place.absolute()) for job in jobs]
    assert list(outcomes) == [folder.id for folder in folders]
    tasks = executor.tasks
    assert [task.title for task in tasks] == [f"{SETTING}: tune, rate 0.1, seed {seed}" for seed in (0, 1)]
    for task, folder in zip(tasks, folders, strict=True):
        assert task.folder == folder.path and folder.path.is_absolute()
        assert task.environment == {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}
        paths = json.loads(task.command[-1])["place"]
        assert (paths["runs"], paths["data"]) == (str(tmp_path / "runs"), str(tmp_path / "data"))


def test_a_network_too_deep_for_the_images_is_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["protocol", "--network", "vgg16", "--no-swa", "--runs", str(tmp_path / "runs")]) == 1
    assert "of digits: images are 8 x 8 pixels; this VGG halves them 5 times" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_output_of_a_protocol_has_its_choices_and_the_accuracy_of_every_column(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def run_jobs(jobs: Sequence[Job], **counted: int) -> dict[str, Outcome]:
        place = Place(runs=tmp_path)
        return {run_job(job, place).id: Outcome(task=task_of(job, place), state="done") for job in jobs}

    monkeypatch.setattr(launch, "jobs_on", lambda executor, place, console: run_jobs)
    console = Console(file=io.StringIO(), width=80, color_system=None)
    config = replace(CONFIG, seeds=1, training=TrainingConfig(width=4, epochs=1))
    done = launch_protocol(config, Place(runs=tmp_path), console=console)
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert "tuning: 1 of 2 runs" in output
    assert f"seed 0 chose rate 0.1; {done.choices[0].averages['accuracy'][0]} at epoch 1 (accuracy)" in output
    assert "…" not in output
    for column in read_setting(done.folder).columns:
        assert f"{100 * (column.values['accuracy'][0] or 0):.2f}" in output
