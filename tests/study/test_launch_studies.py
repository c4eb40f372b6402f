"""The commands `emabank run` and `emabank list`: lists, plans with costs, and studies run in this process."""

import io
import re
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from emabank.study import launch
from emabank.study import run_job as run_job_module
from emabank.study.commands import main
from emabank.study.config import DataConfig, Place, RunConfig
from emabank.study.data.images import Dataset
from emabank.study.executors import Outcome, Task
from emabank.study.executors.progress import duration
from emabank.study.launch import launch_studies, show_studies_plan
from emabank.study.protocol import plan_protocol, resolve
from emabank.study.run_job import folder_of, run_job
from emabank.study.studies import scheduler
from emabank.study.studies.catalogue import STUDIES, list_studies
from emabank.study.studies.cost import Cost, Speed, cost_of, operations
from emabank.study.studies.scales import SCALES
from tests.study.small_runs import one_thread as one_thread
from tests.study.studies.small_studies import (
    CONSTANT,
    DIGITS,
    MAIN,
    MOST,
    PROTOCOLS,
    WIDE,
    WRONG,
    Counting,
    manifests,
    run_here,
    runs_in,
    small_scale,
)

SPEED = Speed(1.0, 0.125, 1e6)


@pytest.fixture(autouse=True, scope="module")
def small() -> Generator[list[int]]:
    """Small protocols at every scale and a fixed speed; gives the widths of the networks it was measured with."""
    measured: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        small_scale(patch)
        patch.setattr(launch, "measure_speed", lambda network, width, *_: measured.append(width) or SPEED)
        patch.setattr(scheduler, "measure_overhead", lambda config, dataset: {})
        yield measured


@pytest.fixture
def finished(finished_studies: tuple[Any, Counting]) -> Counting:
    return finished_studies[1]


def runs_of(names: Sequence[str], finished: Counting) -> dict[str, RunConfig]:
    """The runs that studies ask for, by id; all are done, so none is trained."""
    counting = Counting(finished.place)
    run_here(names, counting)
    assert counting.trained == []
    return {folder_of(config, counting.place).id: config for configs in counting.rounds for config in configs}


def text_of(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined]


def make_console(width: int = 300) -> Console:
    return Console(file=io.StringIO(), width=width, color_system=None)


# List ----------------------------------------------------------------------------------------------------------------


def test_the_list_has_the_pairs_and_the_true_number_of_runs_of_each_study(finished: Counting):
    console = make_console()
    list_studies("demo", console)
    output = text_of(console)
    lines = [re.split(r"\s{2,}", line.strip()) for line in output.splitlines()]
    rows = {line[0]: line[2:] for line in lines if line[0] in (*STUDIES, "all")}
    assert set(rows) == {*STUDIES, "all"}
    for name in MOST:
        assert rows[name][1] == str(len(runs_of([name], finished))), name
    assert rows["all"] == [str(len(finished.trained))], "shared runs count once"
    assert (rows["generalization"][0], rows["lr-search"][0], rows["constant-lr"][0]) == ("abc", "ab", "d")
    for letter, pair, title in (
        ("a", MAIN, "digits, 60 images, ResNet-8 of width 4"),
        ("b", WIDE, "digits, 60 images, ResNet-8 of width 5"),
        ("c", WRONG, "digits, 40% of 60 with wrong labels, ResNet-8 of width 4"),
        ("d", CONSTANT, "digits, 40% of 60 with wrong labels, ResNet-8 of width 4"),
    ):
        assert f"  {letter}  {title} (in place of the paper's {pair})" in output


@pytest.mark.parametrize("scale", SCALES)
def test_the_list_fits_in_80_columns(scale: Any):
    console = make_console(width=80)
    list_studies(scale, console)
    lines = text_of(console).splitlines()
    assert all(len(line) <= 80 for line in lines) and "…" not in "".join(lines)
    assert {line.split()[0] for line in lines if line and not line.startswith(" ")} >= {*STUDIES, "all"}


# Plan ----------------------------------------------------------------------------------------------------------------


def plan_lines(names: Sequence[str], place: Place) -> list[str]:
    console = make_console()
    show_studies_plan([STUDIES[name] for name in names], "demo", place, console=console)
    return text_of(console).splitlines()


def total_of(lines: list[str]) -> tuple[int, int, str]:
    """Finished runs, runs to be trained, and their cost."""
    found = re.fullmatch(r"(\d+) runs are done, (\d+) to be trained: (.*), estimated .*\. Starting .*", lines[-1])
    assert found is not None, lines[-1]
    return int(found[1]), int(found[2]), found[3]


def format_cost(configs: Sequence[RunConfig], jobs: int) -> str:
    total = Cost(0, 0)
    for config in configs:
        total += cost_of(config, SPEED)
    return f"{operations(total.flops)}, about {duration(total.seconds / jobs)} with {jobs} at a time"


def test_the_plan_counts_every_run_once_and_writes_nothing(small: list[int], finished: Counting, tmp_path: Path):
    small.clear()
    lines = plan_lines(MOST, Place(runs=tmp_path / "runs", jobs=3))
    assert not list(tmp_path.iterdir())
    assert sorted(small) == [4, 5], "each network is measured once"
    done, waiting, cost = total_of(lines)
    assert (done, waiting) == (0, len(finished.trained))
    configs = runs_of(MOST, finished)
    assert cost == format_cost(list(configs.values()), 3)
    assert lines[0] == f"digits, 60 images, ResNet-8 of width 4, for {MAIN}"
    tuning = next(config for config in configs.values() if config.recipe.training.width == 4)
    assert lines[1] == f"  tune, rate 0.1, seed 0: waiting, about {duration(cost_of(tuning, SPEED).seconds)}"
    later = {"refit", "swa", "step", "bootstrap", "bootstrap every 5", "posthoc", "every 2", "every 4", "every 8"}
    assert lines[3].startswith("  then, with what tuning chooses: 1 ")
    assert set(lines[3].partition(": 1 ")[2].split(", 1 ")) == later
    at = lines.index(f"digits, 40% of 60 with wrong labels, ResNet-8 of width 4, for {CONSTANT}")
    assert lines[at + 1] == f"  tune, rate 0.1, seed 0: shared with {WRONG}"
    assert lines[at + 2] == "  then, with what tuning chooses: 1 refit (shared), 1 constant"


def test_the_plan_lists_all_remaining_runs_once_tuning_is_done(finished: Counting, tmp_path: Path):
    names = ["sampling-period", "bootstrap"]
    place = Place(runs=tmp_path / "runs", jobs=2)
    for job in plan_protocol(resolve(PROTOCOLS[MAIN]), place, DIGITS).tuning:
        run_job(job, place, DIGITS)
    lines = plan_lines(names, place)
    assert not any("then" in line for line in lines)
    assert [line.rpartition(": ")[2] for line in lines[1:3]] == ["done", "done"]
    kinds = [line.strip().partition(", rate")[0] for line in lines[3:-1]]
    periods = [f"refit, averages every {period}" for period in (2, 4, 8)]
    copied = ["tune, bootstrap from ema-1.8%", "tune, bootstrap from ema-0.44% every 5 steps"]
    assert sorted(kinds) == sorted(["refit", *copied, *periods]), "every 1 is the refit"
    rest = [config for run, config in runs_of(names, finished).items() if run not in runs_in(place)]
    assert total_of(lines) == (2, 6, format_cost(rest, 2))

    lines = plan_lines(MOST, finished.place)
    assert lines[-1] == f"{len(finished.trained)} runs are done, 0 to be trained."
    assert not any("waiting" in line or "then" in line for line in lines)


def test_the_plan_without_the_data_reports_the_error_and_still_the_cost(
    finished: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def read(data: DataConfig, place: Place, console: Console) -> Dataset:
        if data.noise:
            raise FileNotFoundError("there is no file [batches]; fetch it with `emabank data`")
        return DIGITS

    monkeypatch.setattr(launch, "read_data", read)
    lines = plan_lines(MOST, Place(runs=tmp_path / "runs", jobs=2))
    at = lines.index(f"digits, 40% of 60 with wrong labels, ResNet-8 of width 4, for {WRONG}")
    assert lines[at + 1] == "  there is no file [batches]; fetch it with `emabank data`"
    assert lines[at + 2] == "  with these: 1 tune, 1 refit, 1 swa"
    assert lines[at + 5] == "  with these: 1 tune (shared), 1 refit (shared), 1 constant"
    configs = list(runs_of(MOST, finished).values())
    assert total_of(lines) == (0, len(configs), format_cost(configs, 2))


def test_a_plan_works_when_all_tuning_runs_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place, wild = Place(runs=tmp_path), replace(PROTOCOLS[MAIN], rates=(1e20,))
    small_scale(monkeypatch, {MAIN: wild})
    for job in plan_protocol(resolve(wild), place, DIGITS).tuning:
        run_job(job, place, DIGITS)
    lines = plan_lines(["batchnorm"], place)
    assert lines[2] == "  then, with what tuning chooses: 1 refit"
    assert total_of(lines)[:2] == (1, 1)


# Running studies in this process -------------------------------------------------------------------------------------


class InProcessExecutor:
    """Runs the commands of workers in this process; runs with `fails` in their title fail."""

    jobs = 1

    def __init__(self, fails: str = " none ") -> None:
        self.fails, self.titles = fails, list[str]()

    def run_all(self, tasks: Sequence[Task], *, console: Console, **counted: int) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for task in tasks:
            self.titles.append(task.title)
            if self.fails in task.title:
                outcomes.append(Outcome(task=task, state="failed", reason="killed by [SIGKILL]"))
                continue
            assert run_job_module.main([task.command[-1]]) == 0
            outcomes.append(Outcome(task=task, state="done"))
        return outcomes


def run_studies(names: Sequence[str], place: Place, monkeypatch: pytest.MonkeyPatch) -> Any:
    executor, console = InProcessExecutor(), make_console()
    monkeypatch.setattr("emabank.study.launch.executor_for", lambda hardware, place: executor)
    studies = [STUDIES[name] for name in names]
    done = launch_studies(studies, "demo", place, command="emabank run x", console=console)
    return done, text_of(console).splitlines(), executor.titles


def test_studies_run_and_the_next_commands_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    place = Place(runs=Path("my runs"))
    done, lines, titles = run_studies(["bootstrap", "lr-search"], place, monkeypatch)
    assert done
    assert lines[:2] == ["tuning: 3 of 5 runs", "refits, and runs that need only tuning: 2 of 5 runs"]
    assert "The average copied back into training after each epoch" in lines[2], "the first study's table"
    assert lines[-2:] == [
        "done: bootstrap, lr-search",
        "Next: `emabank report 'my runs'` for tables, figures and an HTML page, or `emabank claims 'my runs'` to check "
        "the results against the paper.",
    ]
    assert len(titles) == 5
    assert {(manifest.state, manifest.command) for manifest in manifests(place).values()} == {("done", "emabank run x")}
    _, lines, _ = run_studies(["bootstrap"], Place(), monkeypatch)
    assert "`emabank report` for" in lines[-1], "the default folder is not named"


def test_an_unfinished_study_is_reported_with_its_reason_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for fails, code in (("step decay", 1), (" none ", 0)):
        executor = InProcessExecutor(fails)
        monkeypatch.setattr("emabank.study.launch.executor_for", lambda hardware, place, executor=executor: executor)
        arguments = ["run", "step-decay", "--runs", str(tmp_path / "my runs"), "--device", "cpu", "--set", "seeds=1"]
        assert main(arguments) == code
        manifest = manifests(Place(runs=tmp_path / "my runs"))["step-decay"]
        assert manifest.command == f"emabank run step-decay --runs '{tmp_path / 'my runs'}' --device cpu --set seeds=1"
        if code:
            assert "1 of 2 runs failed, the first with killed by [SIGKILL]: digits, 60 images" in manifest.reason
            assert f"step-decay could not be finished: {manifest.reason}\n" in capsys.readouterr().err


def test_each_data_set_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Counting):
    read: list[Any] = []
    read_data = launch.read_data

    def counting(data: DataConfig, place: Place, console: Console) -> Dataset:
        read.append(data)
        return read_data(data, place, console)

    monkeypatch.setattr(launch, "read_data", counting)
    done, _, _ = run_studies(["generalization", "constant-lr"], finished.place, monkeypatch)
    assert done
    assert read == [PROTOCOLS[MAIN].data.completed(), PROTOCOLS[WRONG].data.completed()]
