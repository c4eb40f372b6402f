"""The commands of the studies as processes and functions: how each ends, in which sentence, and what it leaves."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from emabank.study.commands import main
from emabank.study.studies.catalogue import STUDIES
from tests.study.small_folder import finished as finished
from tests.study.small_folder import runs as runs
from tests.support.processes import run

COMMAND = (sys.executable, "-m", "emabank.study")
SMALL = ["--seeds", "1", "--set", "rates=[0.2]", "epochs=3", "warmup_epochs=0", "subset=100", "width=4", "swa=false"]


def code_of(*words: str) -> object:
    try:
        return main(words)
    except SystemExit as stopped:
        return stopped.code


def failed(capsys: pytest.CaptureFixture[str], *words: str, code: int) -> str:
    """The one sentence on which a command ends."""
    assert code_of(*words) == code
    printed = capsys.readouterr()
    assert printed.out == "", "it has to fail before anything else"
    assert printed.err.startswith("emabank: ") and printed.err.endswith("\n") and printed.err.count("\n") == 1
    return printed.err.removeprefix("emabank: ").removesuffix("\n")


class Launched:
    """Stands for what carries out, plans or lists studies, and remembers what it was asked."""

    def __init__(self, result: object = None) -> None:
        self.result = result
        self.given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *given: Any, **more: Any) -> object:
        self.given.append((given, more))
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Launched:
    launched = Launched(True)
    monkeypatch.setattr("emabank.study.launch.launch_studies", launched)
    monkeypatch.setattr("emabank.study.launch.show_studies_plan", Launched(AssertionError("no plan was asked")))
    return launched


# Running -------------------------------------------------------------------------------------------------------------


def test_run_is_given_the_studies_the_place_and_the_command_as_it_was_typed(launch: Launched):
    words = ["run", "dynamics", "--scale", "small", "--runs", "my runs", "--set", "rates=[0.1, 0.2]", "--seeds", "2"]
    assert main(words) == 0
    (((studies, scale, place), more),) = launch.given
    assert (studies, scale, place.runs) == ((STUDIES["dynamics"],), "small", Path("my runs"))
    assert shlex.split(more["command"]) == ["emabank", *words]
    assert "'my runs'" in more["command"]


def test_run_all_is_every_study(launch: Launched):
    assert main(["run", "all"]) == 0
    assert launch.given[0][0][:2] == (tuple(STUDIES.values()), "demo")


def test_a_study_that_could_not_be_finished_is_code_1(launch: Launched):
    launch.result = False
    assert main(["run", "dynamics"]) == 1


def test_run_interrupted_says_that_the_same_command_goes_on(launch: Launched, capsys: pytest.CaptureFixture[str]):
    launch.result = KeyboardInterrupt()
    said = failed(capsys, "run", "dynamics", code=130)
    assert said == "interrupted; the same command resumes"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ValueError("device is cuda, which torch does not find here"),
            "device is cuda, which torch does not find here",
        ),
        (OSError(28, "No space left on device", "runs/x"), "runs/x: No space left on device"),
    ],
)
def test_what_stops_a_study_is_one_sentence(
    error: Exception, said: str, launch: Launched, capsys: pytest.CaptureFixture[str]
):
    launch.result = error
    assert failed(capsys, "run", "dynamics", code=1) == said


@pytest.mark.parametrize("words", [["report"], ["claims"], ["status"], ["list"]])
def test_other_commands_interrupted_have_nothing_to_go_on_with(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name in (
        "reporting.make_report",
        "reporting.show_claims",
        "status.show_status",
        "studies.listing.list_studies",
    ):
        monkeypatch.setattr(f"emabank.study.{name}", Launched(KeyboardInterrupt()))
    assert failed(capsys, *words, code=130) == "interrupted"


def test_a_dry_run_plans_and_trains_nothing(monkeypatch: pytest.MonkeyPatch):
    plan, never = Launched(), Launched(AssertionError("something was trained"))
    monkeypatch.setattr("emabank.study.launch.show_studies_plan", plan)
    monkeypatch.setattr("emabank.study.launch.launch_studies", never)
    assert main(["run", "transfer", "--dry-run", "--scale", "paper"]) == 0
    assert plan.given[0][0][:2] == ((STUDIES["transfer"],), "paper") and not never.given


def test_a_dry_run_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", "bootstrap", *SMALL, "--dry-run", "--runs", str(tmp_path / "runs")]) == 0
    printed = capsys.readouterr()
    assert "tune, rate 0.2, seed 0: waiting, about " in printed.out and printed.err == ""
    assert re.search(r"0 runs are done, \d+ to be trained", " ".join(printed.out.split()))
    assert not list(tmp_path.iterdir())


def test_list_is_given_the_scale(monkeypatch: pytest.MonkeyPatch):
    listed = Launched()
    monkeypatch.setattr("emabank.study.studies.listing.list_studies", listed)
    assert main(["list", "--scale", "paper"]) == main(["list"]) == 0
    assert [given for given, _ in listed.given] == [("paper",), ("demo",)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "nonsense"], "there is no study 'nonsense'; give all, or one of generalization, "),
        (["run", "dynamics", "--seeds", "0"], "seeds is 0; give 1 or more"),
        (["run", "dynamics", "--set", "nonsense"], "--set: 'nonsense' is no setting; give key=value, "),
        (["run", "dynamics", "--set", "colour=red"], "--set: there is no setting 'colour'; there are "),
    ],
)
def test_what_cannot_be_run_is_said_with_code_2(
    words: list[str], said: str, launch: Launched, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2 and not launch.given
    printed = capsys.readouterr()
    assert printed.out == "" and said in " ".join(printed.err.replace("│", " ").split())


@pytest.mark.parametrize("words", [["run"], ["run", "dynamics", "--scale", "huge"], ["list", "--scale", "huge"]])
def test_words_that_make_no_sense_are_code_2(words: list[str], launch: Launched, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2 and not launch.given
    printed = capsys.readouterr()
    assert printed.out == "" and f"emabank {words[0]} --help" in " ".join(printed.err.split())


def test_missing_data_fails_the_study_with_how_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    place = ["--data", str(tmp_path / "data"), "--runs", str(tmp_path / "runs")]
    assert main(["run", "label-noise", "--scale", "small", *place]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("label-noise could not be finished: cifar10n-resnet34: ")
    assert "run `emabank data fetch cifar10 " in said and "next:" not in said
    (manifest,) = (tmp_path / "runs").glob("*.json")
    assert json.loads(manifest.read_text())["state"] == "failed"
    assert main(["status", str(tmp_path / "runs")]) == 0
    assert "failed: cifar10n-resnet34: " in " ".join(capsys.readouterr().out.split())


# Looking at what there is --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["report", "claims", "status"])
def test_a_missing_folder_of_runs_is_one_sentence(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    words = "give the folder that `emabank run` wrote its runs to"
    assert failed(capsys, command, code=1) == f"the folder runs is not there; {words}"
    assert failed(capsys, command, "mine", code=1) == f"the folder mine is not there; {words}"
    (tmp_path / "file").touch()
    assert failed(capsys, command, "file", code=1) == f"the folder file is not a folder; {words}"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_report_that_cannot_be_put_anywhere_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "runs").mkdir()
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "report"
    said = failed(capsys, "report", str(tmp_path / "runs"), "--out", str(out), code=1)
    assert said == f"{out}: The folder for files.json cannot be made: Not a directory"
    said = failed(capsys, "report", str(tmp_path / "runs"), "--out", str(tmp_path / "file"), code=1)
    assert said == f"{tmp_path}/file: The folder for files.json cannot be made: File exists"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "runs"]


@pytest.mark.parametrize("limit", [10, 2_500, 40_000])
def test_a_full_disk_is_one_sentence_and_leaves_no_part_of_a_file(limit: int, tmp_path: Path):
    # A limit on the size of files fails a write in the way a full disk does.
    (tmp_path / "runs").mkdir()
    done = run(f"""
import resource, signal
import emabank.study.reporting
from emabank.study.commands import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
sys.exit(main(["report", {str(tmp_path / "runs")!r}, "--out", {str(tmp_path / "report")!r}]))
""")
    assert done.returncode == 1, done.stderr
    place = re.escape(str(tmp_path / "report"))
    assert re.fullmatch(rf"emabank: {place}/\S+: Could not be written \(File too large\)\n", done.stderr)
    left = [path for path in (tmp_path / "report").rglob("*") if path.is_file()]
    assert all(path.stat().st_size < limit and not path.name.startswith(".") for path in left)
    assert "index.html" not in [path.name for path in left]


def test_a_full_disk_when_figures_are_drawn_is_one_sentence_too(runs: Path):
    for name in ("generalization", "constant-lr", "bootstrap", "sampling-period"):
        (runs / f"study-demo-{name}.json").unlink()
    done = run(f"""
import resource, signal
import emabank.study.reporting
from emabank.study.commands import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (29_000, 29_000))
sys.exit(main(["report", {str(runs)!r}]))
""")
    assert done.returncode == 1, done.stderr
    assert re.fullmatch(r"emabank: \S+\.svg: Could not be written \(File too large\)\n", done.stderr), done.stderr
    assert not list((runs / "report").rglob(".*"))


@pytest.mark.parametrize("words", [["list"], ["run"], ["run", "all"], ["report"], ["claims"], ["status"]])
def test_help_loads_no_torch(words: list[str]):
    done = run(f"""
from emabank.study.commands import main
try:
    main([*{words}, "--help"])
except SystemExit as stopped:
    assert stopped.code == 0
assert not {{"torch", "matplotlib", "pandas", "numpy"}} & set(sys.modules)
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: emabank {words[0]} ")


def test_a_reader_that_has_had_enough_is_no_failure_to_talk_about(runs: Path):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([*COMMAND, "claims", str(runs)], stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert done.returncode == 1 and done.stderr == b""


# In earnest ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_study_is_interrupted_goes_on_is_reported_and_costs_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    words = [*COMMAND, "run", "bootstrap", *SMALL, "--set", "epochs=60", "--jobs", "1"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if ": epoch " in line:
                break
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert said == "emabank: interrupted; the same command resumes\n"
    (interrupted,) = (path.parent for path in (tmp_path / "runs").glob("*/config.json"))

    def command(*words: str) -> str:
        assert main(words) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out

    assert "1 runs: 0 done, 0 running, 1 waiting, 0 failed" in command("status")
    printed = command("report")
    assert "study bootstrap, demo: not finished: it runs, or was interrupted (`emabank run bootstrap " in printed
    assert f"  {interrupted.name}: interrupted before its end; the same command resumes" in printed
    assert re.search(r"next: `emabank run bootstrap .*--jobs 1`\.\n$", printed)

    printed = command(*words[len(COMMAND) :])
    assert "done: bootstrap" in printed and "Next: `emabank report` for tables, figures and an HTML page" in printed
    assert len(json.loads((interrupted / "environment.json").read_text())["sessions"]) == 2, "it went on"
    assert "2 runs: 2 done, 0 running, 0 waiting, 0 failed" in command("status")
    assert "Left out:" not in command("report") and (tmp_path / "runs/report/index.html").exists()
    assert "started" not in command(*words[len(COMMAND) :]), "all of it is done already"


@pytest.mark.slow
def test_a_study_whose_runs_come_to_nothing_is_code_1(tmp_path: Path):
    words = [*COMMAND, "run", "bootstrap", *SMALL, "--set", "rates=[1e9]"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and done.stderr == ""
    why = "cifar100-resnet18: with seed 0 the training diverged at every learning rate"
    assert f"bootstrap could not be finished: {why}" in done.stdout
    done = subprocess.run([*COMMAND, "report"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and f"study bootstrap, demo: failed: {why}" in done.stdout
