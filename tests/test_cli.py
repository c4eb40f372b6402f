"""The command: what it prints, how it ends, in which sentence, and what it leaves."""

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

import emabank
from emabank.study.commands import main
from emabank.study.commands.parsing import COMMANDS
from emabank.study.studies.catalogue import STUDIES
from tests.study.small_folder import finished as finished
from tests.study.small_folder import runs as runs
from tests.support.files import everything_in
from tests.support.processes import run

COMMAND = (sys.executable, "-m", "emabank.study")
SMALL = ["--seeds", "1", "--set", "rates=[0.2]", "epochs=3", "warmup_epochs=0", "subset=100", "width=4", "swa=false"]
Capture = pytest.CaptureFixture[str]


def failed(capsys: Capture, *words: str, code: int) -> str:
    """The one sentence on which a command ends."""
    try:
        ended: object = main(words)
    except SystemExit as stopped:
        ended = stopped.code
    assert ended == code
    printed = capsys.readouterr()
    assert printed.out == "", "it has to fail before anything else"
    assert printed.err.startswith("emabank: ") and printed.err.endswith("\n") and printed.err.count("\n") == 1
    return printed.err.removeprefix("emabank: ").removesuffix("\n")


def limited(size: int, words: list[str], first: str) -> "subprocess.CompletedProcess[str]":
    """A command that cannot write files above a size, which fails as a full disk does; `first` is imported before."""
    return run(f"""
import resource, signal
import torch.distributed.nn  # torch 2.6 writes a file of its own while this is imported
import {first}
from emabank.study.commands import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
sys.exit(main({words}))
""")


class Called:
    """Stands for a stage, and records its calls."""

    def __init__(self, result: object = None) -> None:
        self.result = result
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *arguments: Any, **keywords: Any) -> object:
        self.calls.append((arguments, keywords))
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Called:
    launched = Called(True)
    monkeypatch.setattr("emabank.study.launch.launch_studies", launched)
    monkeypatch.setattr("emabank.study.launch.show_studies_plan", Called(AssertionError("no plan was asked")))
    return launched


# Words ---------------------------------------------------------------------------------------------------------------


def test_version(capsys: Capture):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"emabank {emabank.__version__}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("demmo", "emabank: there is no command 'demmo' (did you mean demo?); `emabank --help` lists the commands"),
        ("--version demo", "--version"),
        ("demo --epoch 3", "--epochs"),
        ("demo --epochs three", "--epochs must be a whole number, such as 3; got 'three'"),
        ("run all --jobs two", "--jobs must be a whole number, such as 3; got 'two'"),
        ("run all --seeds abc", "seeds is 'abc'; give a count, such as 3, or seeds, such as 10-19"),
        ("demo --epochs 0", "epochs is 0; give 1 or more"),
        ("demo --noise 40", "noise is 40.0; give a share from 0 to 1"),
        ("protocol --dataset cifar11", "cifar11"),
        ("data check cifar11", "cifar11"),
        ("run", "emabank run --help"),
        ("run nonsense", "there is no study 'nonsense'; give all, or one of generalization, "),
        ("run dynamics --scale smal", "--scale must be one of demo, small, paper (did you mean small?); got 'smal'"),
        ("bench --averages 1 x", "--averages must be a whole number, such as 3; got 'x'"),
        ("run dynamics --seeds 0", "seeds is 0; give 1 or more"),
        ("run dynamics --set nonsense", "--set: 'nonsense' is no setting; give key=value, "),
        ("run dynamics --set colour=red", "--set: there is no setting 'colour'; there are "),
        ("list --scale=huge", "--scale must be one of demo, small, paper; got 'huge'"),
    ],
)
def test_words_that_make_no_sense_are_named_with_code_2(words: str, says: str, launch: Called, capsys: Capture):
    with pytest.raises(SystemExit) as stopped:
        main(words.split())
    assert stopped.value.code == 2 and not launch.calls
    printed = capsys.readouterr()
    assert printed.out == "" and says in " ".join(printed.err.replace("│", " ").split())


def test_help_has_one_line_per_command(capsys: Capture):
    for words in ([], ["--help"], ["-h"]):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert stopped.value.code == 0
        printed = capsys.readouterr().out
        lines = [line for line in printed.splitlines() if line.startswith("  ")]
        assert [line.split()[0] for line in lines] == list(COMMANDS)
        assert all(len(line) <= 100 for line in printed.splitlines())


@pytest.mark.parametrize("words", [["list"], ["decay", "0.999"], ["demo", "--epochs", "1"], ["run", "--help"]])
def test_an_ascii_terminal_is_no_trouble(words: list[str], tmp_path: Path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = subprocess.run([*COMMAND, *words], cwd=tmp_path, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode("ascii")


def test_a_file_that_does_not_fit_is_one_sentence(tmp_path: Path, capsys: Capture):
    file = tmp_path / "study.toml"
    file.write_text("[training]\nepoch = 3\n")
    says = failed(capsys, "protocol", "--config", str(file), code=2)
    assert says.startswith(f"{file}, training: unknown key 'epoch'; there are network, width, epochs, ")
    assert everything_in(tmp_path) == ["study.toml"]


def test_run_gets_the_studies_the_place_and_the_command_as_it_was_typed(launch: Called):
    words = ["run", "dynamics", "--scale", "small", "--runs", "my runs", "--set", "rates=[0.1, 0.2]", "--seeds", "2"]
    assert main(words) == 0
    (((studies, scale, place), keywords),) = launch.calls
    assert (studies, scale, place.runs) == ((STUDIES["dynamics"],), "small", Path("my runs"))
    assert shlex.split(keywords["command"]) == ["emabank", *words]
    launch.result = False  # it could not be finished
    assert main(["run", "all"]) == 1
    assert launch.calls[1][0][:2] == (tuple(STUDIES.values()), "demo")


def test_a_dry_run_plans_and_trains_nothing(monkeypatch: pytest.MonkeyPatch):
    plan, never = Called(), Called(AssertionError("something was trained"))
    monkeypatch.setattr("emabank.study.launch.show_studies_plan", plan)
    monkeypatch.setattr("emabank.study.launch.launch_studies", never)
    assert main(["run", "transfer", "--dry-run", "--scale", "paper"]) == 0
    assert plan.calls[0][0][:2] == ((STUDIES["transfer"],), "paper") and not never.calls


def test_a_dry_run_leaves_nothing(tmp_path: Path, capsys: Capture):
    assert main(["run", "bootstrap", *SMALL, "--dry-run", "--runs", str(tmp_path / "runs")]) == 0
    printed = capsys.readouterr()
    assert "tune, rate 0.2, seed 0: waiting, about " in printed.out and printed.err == ""
    assert re.search(r"0 runs are done, \d+ to be trained", " ".join(printed.out.split()))
    assert everything_in(tmp_path) == []


def test_list_gets_the_scale(monkeypatch: pytest.MonkeyPatch):
    listed = Called()
    monkeypatch.setattr("emabank.study.studies.listing.list_studies", listed)
    assert main(["list", "--scale", "paper"]) == main(["list"]) == 0
    assert [arguments for arguments, _ in listed.calls] == [("paper",), ("demo",)]


# Failures ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("device is cuda, which torch does not find"), "device is cuda, which torch does not find"),
        (OSError(28, "No space left on device", "runs/x"), "runs/x: No space left on device"),
    ],
)
def test_what_stops_a_study_is_one_sentence(error: Exception, says: str, launch: Called, capsys: Capture):
    launch.result = error
    assert failed(capsys, "run", "dynamics", code=1) == says


@pytest.mark.parametrize(
    ("words", "stage", "says"),
    [
        (["run", "dynamics"], "launch.launch_studies", "interrupted; the same command resumes"),
        (["protocol"], "launch.launch_protocol", "interrupted; the same command resumes"),
        (["report"], "reporting.make_report", "interrupted"),
        (["claims"], "reporting.show_claims", "interrupted"),
        (["status"], "status.show_status", "interrupted"),
        (["list"], "studies.listing.list_studies", "interrupted"),
    ],
)
def test_interrupted_what_can_be_resumed_says_so(words, stage, says, monkeypatch: pytest.MonkeyPatch, capsys: Capture):
    monkeypatch.setattr(f"emabank.study.{stage}", Called(KeyboardInterrupt()))
    assert failed(capsys, *words, code=130) == says


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("emabank.study.demo.run_demo", Called(IndexError()))
    with pytest.raises(IndexError):
        main(["demo"])


@pytest.mark.parametrize(("executor", "package"), [("slurm", "submitit"), ("ray", "ray")])
def test_an_executor_without_its_package_is_refused_before_anything_is_written(
    executor: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    words = ["run", "bootstrap", *SMALL, "--executor", executor, "--runs", str(tmp_path / "runs")]
    says = failed(capsys, *words, code=1)
    assert says == f"--executor {executor} needs the package {package}: pip install {package}"
    assert everything_in(tmp_path) == []
    assert main([*words, "--dry-run"]) == 0


@pytest.mark.parametrize("missing", ["tyro", "rich", "numpy", "matplotlib"])
def test_a_library_only_installation_says_what_to_install(missing: str, tmp_path: Path):
    words = ["demo", "--epochs", "1", "--out", str(tmp_path)]
    done = run(f"from emabank.study.commands import main; sys.exit(main({words}))", blocked=(missing,))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    # The last line: without numpy torch has a warning of its own before it.
    assert done.stderr.splitlines()[-1] == (
        f"emabank: the commands need the package {missing}, which is not installed; in the clone of emabank, "
        "pip install '.[study]'"
    )


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path, capsys: Capture):
    (tmp_path / "runs").mkdir()
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "below"
    assert failed(capsys, "demo", "--out", str(below), code=1) == f"{below}: Not a directory"
    says = failed(capsys, "report", str(tmp_path / "runs"), "--out", str(below), code=1)
    assert says == f"{below}: The folder for files.json cannot be made: Not a directory"
    assert everything_in(tmp_path) == ["file", "runs"]


@pytest.mark.parametrize("command", ["report", "claims", "status"])
def test_a_missing_folder_of_runs_is_one_sentence(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
):
    monkeypatch.chdir(tmp_path)
    words = "pass the folder that `emabank run` wrote its runs to"
    assert failed(capsys, command, code=1) == f"runs does not exist; {words}"
    (tmp_path / "file").touch()
    assert failed(capsys, command, "file", code=1) == f"file is not a folder; {words}"
    assert everything_in(tmp_path) == ["file"]


def test_a_full_disk_is_one_sentence_and_leaves_no_part_of_a_file(tmp_path: Path):
    done = limited(1000, ["demo", "--epochs", "1", "--out", str(tmp_path)], "emabank.study.demo")
    assert done.returncode == 1, done.stderr
    progress, error = done.stderr.splitlines()
    assert progress.startswith("epoch 1/1")
    assert error.startswith(f"emabank: {tmp_path}/rows.json: Could not be written (File too large)")
    assert everything_in(tmp_path) == []


@pytest.mark.parametrize("limit", [10, 29_000])
def test_a_full_disk_in_a_report_is_one_sentence_and_leaves_no_part_of_a_file(limit: int, runs: Path):
    for name in ("generalization", "constant-lr", "bootstrap", "sampling-period"):
        (runs / f"study-demo-{name}.json").unlink()
    done = limited(limit, ["report", str(runs)], "emabank.study.reporting")
    assert done.returncode == 1, done.stderr
    *progress, error = done.stderr.splitlines()
    assert re.match(r"emabank: \S+: Could not be written \(File too large\)", error), done.stderr
    assert all(line.startswith("files of the report: ") for line in progress)
    written = [path for path in (runs / "report").rglob("*") if path.is_file()]
    assert all(path.stat().st_size < limit and not path.name.startswith(".") for path in written)
    assert "index.html" not in [path.name for path in written]


@pytest.mark.slow
def test_a_full_disk_in_a_run_of_a_protocol_is_one_sentence_and_leaves_nothing_in_the_way(tmp_path: Path):
    words = ["protocol", "--epochs", "1", "--no-swa", "--seeds", "1", "--rates", "0.4", "--subset", "100", "--runs"]
    done = limited(10_000, [*words, str(tmp_path)], "emabank.study.launch")
    assert done.returncode == 1 and "File too large" in done.stderr and done.stdout == ""
    (folder,) = tmp_path.iterdir()
    last = done.stderr.splitlines()[-1]
    assert last.startswith("emabank: 1 of 1 runs failed, the first with ")
    assert last.endswith(f": tune, rate 0.4, seed 0; see {folder}/log.txt, then start it again")
    complete = {"config.json", "environment.json", "failed.json", "lock", "log.txt", "progress.json"}
    assert set(everything_in(folder)) <= complete


def test_ctrl_c_is_one_line(tmp_path: Path):
    command = (*COMMAND, "demo", "--out", str(tmp_path))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("epoch 1/"):
                break
        process.send_signal(signal.SIGINT)
        _, says = process.communicate(timeout=60)
    assert process.returncode == 130
    assert says.splitlines()[-1] == "emabank: interrupted" and "Traceback" not in says


def test_a_reader_that_has_had_enough_is_no_failure_to_talk_about():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([*COMMAND, "protocol", "--help"], stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert done.returncode == 1 and done.stderr == b""


# Data ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dry", [True, False])
def test_missing_data_is_named_with_how_to_get_it(dry: bool, tmp_path: Path, capsys: Capture):
    place = ["--data", str(tmp_path / "data"), "--runs", str(tmp_path / "runs")]
    says = failed(capsys, "protocol", "--dataset", "cifar10", *place, *["--dry-run"] * dry, code=1)
    assert says.startswith(f"{tmp_path}/data holds neither cifar-10-batches-py/data_batch_1, ")
    assert f"nor cifar-10-python.tar.gz; run `emabank data fetch cifar10 --data {tmp_path}/data`" in says
    assert everything_in(tmp_path) == []


def test_missing_data_fails_a_study_with_how_to_get_it(tmp_path: Path, capsys: Capture):
    place = ["--data", str(tmp_path / "data"), "--runs", str(tmp_path / "runs")]
    assert main(["run", "label-noise", "--scale", "small", *place]) == 1
    printed = capsys.readouterr()
    says = " ".join(printed.err.split())
    assert printed.out == "" and says.startswith("label-noise could not be finished: cifar100n-resnet34: ")
    assert "run `emabank data fetch cifar10 " in says and "next:" not in says
    (manifest,) = (tmp_path / "runs").glob("*.json")
    assert json.loads(manifest.read_text())["state"] == "failed"
    assert main(["status", str(tmp_path / "runs")]) == 0
    assert "failed: cifar100n-resnet34: " in " ".join(capsys.readouterr().out.split())


def test_data_check_and_fetch_end_by_what_is_there(tmp_path: Path, capsys: Capture):
    for word in ("check", "fetch"):  # needs no network
        assert main(["data", word, "digits"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "digits: complete"
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py/test_batch").write_bytes(b"short")
    assert main(["data", "check", "cifar10", "--data", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert sum(line.startswith("missing  ") for line in lines) == 6
    assert sum(line.startswith("damaged  ") and "test_batch" in line for line in lines) == 1
    assert lines[-1].startswith(f"cifar10: not complete; `emabank data fetch cifar10 --data {tmp_path}` ")


# In earnest ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_study_is_interrupted_resumes_is_reported_and_costs_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
):
    monkeypatch.chdir(tmp_path)
    words = [*COMMAND, "run", "bootstrap", *SMALL, "--set", "epochs=60", "--jobs", "1"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if ": epoch " in line:
                break
        process.send_signal(signal.SIGINT)
        _, says = process.communicate(timeout=120)
    assert process.returncode == 130
    assert says.splitlines()[-1] == "emabank: interrupted; the same command resumes"
    (interrupted,) = (path.parent for path in (tmp_path / "runs").glob("*/config.json"))

    def command(*words: str) -> str:
        assert main(words) == 0
        printed = capsys.readouterr()
        assert "emabank: " not in printed.err
        return printed.out + printed.err

    assert "1 run: 0 done, 1 interrupted" in command("status")
    printed = command("report")
    assert "study bootstrap, demo: interrupted; `emabank run bootstrap " in printed
    assert f"  {interrupted.name}: interrupted before its end; the same command resumes" in printed
    assert re.search(r"next: `emabank run bootstrap .*--jobs 1`\.\n", printed)

    printed = command(*words[len(COMMAND) :])
    assert "done: bootstrap" in printed and "Next: `emabank report` for tables, figures and an HTML page" in printed
    assert len(json.loads((interrupted / "environment.json").read_text())["sessions"]) == 2, "it resumed"
    assert "3 runs: 3 done" in command("status")
    assert "Skipped:" not in command("report") and (tmp_path / "runs/report/index.html").exists()
    assert "started" not in command(*words[len(COMMAND) :]), "all of it is done already"


@pytest.mark.slow
def test_a_study_whose_runs_all_diverge_is_code_1(tmp_path: Path):
    words = [*COMMAND, "run", "bootstrap", *SMALL, "--set", "rates=[1e9]"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and done.stdout == ""
    why = "cifar100-resnet18: with seed 0 the training diverged at every learning rate"
    assert f"bootstrap could not be finished: {why}" in done.stderr
    done = subprocess.run([*COMMAND, "report"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and f"study bootstrap, demo: failed: {why}" in done.stdout
