"""The emabank command: output, exit codes, error messages and files."""

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


def error_of(capsys: Capture, *words: str, code: int) -> str:
    """The one-line message of a command that fails."""
    try:
        exit_code: object = main(words)
    except SystemExit as stopped:
        exit_code = stopped.code
    assert exit_code == code
    output = capsys.readouterr()
    assert output.out == "", "a command that fails prints no results"
    assert output.err.startswith("emabank: ") and output.err.endswith("\n") and output.err.count("\n") == 1
    return output.err.removeprefix("emabank: ").removesuffix("\n")


def run_with_file_limit(size: int, words: list[str], first: str) -> "subprocess.CompletedProcess[str]":
    """Run a command that cannot write larger files, as on a full disk; `first` is imported before the limit."""
    return run(f"""
import resource, signal
import torch.distributed.nn  # torch 2.6 writes a file of its own while this is imported
import {first}
from emabank.study.commands import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
sys.exit(main({words}))
""")


class FakeStage:
    """Replaces a stage, and records its calls."""

    def __init__(self, result: object = None) -> None:
        self.result = result
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *arguments: Any, **keywords: Any) -> object:
        self.calls.append((arguments, keywords))
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> FakeStage:
    launched = FakeStage(True)
    monkeypatch.setattr("emabank.study.launch.launch_studies", launched)
    monkeypatch.setattr("emabank.study.launch.show_studies_plan", FakeStage(AssertionError("a plan was made")))
    return launched


# Arguments -----------------------------------------------------------------------------------------------------------


def test_version(capsys: Capture):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"emabank {emabank.__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
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
        ("run dynamics --set nonsense", "--set: 'nonsense' is not a setting; give key=value, "),
        ("run dynamics --set colour=red", "--set: there is no setting 'colour'; there are "),
        ("list --scale=huge", "--scale must be one of demo, small, paper; got 'huge'"),
    ],
)
def test_invalid_arguments_are_named_with_exit_code_2(words: str, message: str, launch: FakeStage, capsys: Capture):
    with pytest.raises(SystemExit) as stopped:
        main(words.split())
    assert stopped.value.code == 2 and not launch.calls
    output = capsys.readouterr()
    assert output.out == "" and message in " ".join(output.err.replace("│", " ").split())


def test_help_has_one_line_per_command(capsys: Capture):
    for words in ([], ["--help"], ["-h"]):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert stopped.value.code == 0
        output = capsys.readouterr().out
        lines = [line for line in output.splitlines() if line.startswith("  ")]
        assert [line.split()[0] for line in lines] == list(COMMANDS)
        assert all(len(line) <= 100 for line in output.splitlines())


@pytest.mark.parametrize("words", [["list"], ["decay", "0.999"], ["demo", "--epochs", "1"], ["run", "--help"]])
def test_commands_work_in_an_ascii_terminal(words: list[str], tmp_path: Path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    result = subprocess.run([*COMMAND, *words], cwd=tmp_path, env=environment, capture_output=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.decode("ascii")


def test_an_unknown_key_in_a_config_file_is_a_clear_error(tmp_path: Path, capsys: Capture):
    file = tmp_path / "study.toml"
    file.write_text("[training]\nepoch = 3\n")
    message = error_of(capsys, "protocol", "--config", str(file), code=2)
    assert message.startswith(f"{file}, training: unknown key 'epoch'; there are network, width, epochs, ")
    assert everything_in(tmp_path) == ["study.toml"]


def test_run_passes_studies_scale_folder_and_command_to_the_launcher(launch: FakeStage):
    words = ["run", "dynamics", "--scale", "small", "--runs", "my runs", "--set", "rates=[0.1, 0.2]", "--seeds", "2"]
    assert main(words) == 0
    (((studies, scale, place), keywords),) = launch.calls
    assert (studies, scale, place.runs) == ((STUDIES["dynamics"],), "small", Path("my runs"))
    assert shlex.split(keywords["command"]) == ["emabank", *words]
    launch.result = False  # not finished
    assert main(["run", "all"]) == 1
    assert launch.calls[1][0][:2] == (tuple(STUDIES.values()), "demo")


def test_a_dry_run_plans_and_trains_nothing(monkeypatch: pytest.MonkeyPatch):
    plan, never = FakeStage(), FakeStage(AssertionError("something was trained"))
    monkeypatch.setattr("emabank.study.launch.show_studies_plan", plan)
    monkeypatch.setattr("emabank.study.launch.launch_studies", never)
    assert main(["run", "transfer", "--dry-run", "--scale", "paper"]) == 0
    assert plan.calls[0][0][:2] == ((STUDIES["transfer"],), "paper") and not never.calls


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: Capture):
    assert main(["run", "bootstrap", *SMALL, "--dry-run", "--runs", str(tmp_path / "runs")]) == 0
    output = capsys.readouterr()
    assert "tune, rate 0.2, seed 0: waiting, about " in output.out and output.err == ""
    assert re.search(r"0 runs are done, \d+ to be trained", " ".join(output.out.split()))
    assert everything_in(tmp_path) == []


def test_list_uses_the_scale(monkeypatch: pytest.MonkeyPatch):
    listed = FakeStage()
    monkeypatch.setattr("emabank.study.studies.catalogue.list_studies", listed)
    assert main(["list", "--scale", "paper"]) == main(["list"]) == 0
    assert [arguments for arguments, _ in listed.calls] == [("paper",), ("demo",)]


# Failures ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("device is cuda, which torch does not find"), "device is cuda, which torch does not find"),
        (OSError(28, "No space left on device", "runs/x"), "runs/x: No space left on device"),
    ],
)
def test_an_error_in_a_study_is_a_one_line_message(error: Exception, message: str, launch: FakeStage, capsys: Capture):
    launch.result = error
    assert error_of(capsys, "run", "dynamics", code=1) == message


@pytest.mark.parametrize(
    ("words", "stage", "message"),
    [
        (["run", "dynamics"], "launch.launch_studies", "interrupted; the same command resumes"),
        (["protocol"], "launch.launch_protocol", "interrupted; the same command resumes"),
        (["report"], "reporting.make_report", "interrupted"),
        (["claims"], "reporting.show_claims", "interrupted"),
        (["status"], "status.show_status", "interrupted"),
        (["list"], "studies.catalogue.list_studies", "interrupted"),
    ],
)
def test_interrupt_message_mentions_resuming(words, stage, message, monkeypatch: pytest.MonkeyPatch, capsys: Capture):
    monkeypatch.setattr(f"emabank.study.{stage}", FakeStage(KeyboardInterrupt()))
    assert error_of(capsys, *words, code=130) == message


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("emabank.study.demo.run_demo", FakeStage(IndexError()))
    with pytest.raises(IndexError):
        main(["demo"])


@pytest.mark.parametrize(("executor", "package"), [("slurm", "submitit"), ("ray", "ray")])
def test_an_executor_without_its_package_is_refused_before_anything_is_written(
    executor: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    words = ["run", "bootstrap", *SMALL, "--executor", executor, "--runs", str(tmp_path / "runs")]
    message = error_of(capsys, *words, code=1)
    assert message == f"--executor {executor} needs the package {package}: pip install {package}"
    assert everything_in(tmp_path) == []
    assert main([*words, "--dry-run"]) == 0


@pytest.mark.parametrize("missing", ["tyro", "rich", "numpy", "matplotlib"])
def test_a_library_only_installation_names_the_missing_package(missing: str, tmp_path: Path):
    words = ["demo", "--epochs", "1", "--out", str(tmp_path)]
    result = run(f"from emabank.study.commands import main; sys.exit(main({words}))", blocked=(missing,))
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    # The last line: without numpy torch has a warning of its own before it.
    assert result.stderr.splitlines()[-1] == (
        f"emabank: the commands need the package {missing}, which is not installed; in the clone of emabank, "
        "pip install '.[study]'"
    )


def test_a_folder_that_cannot_be_created_is_a_clear_error(tmp_path: Path, capsys: Capture):
    (tmp_path / "runs").mkdir()
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "below"
    assert error_of(capsys, "demo", "--out", str(below), code=1) == f"{below}: Not a directory"
    message = error_of(capsys, "report", str(tmp_path / "runs"), "--out", str(below), code=1)
    assert message == f"{below}: The folder for files.json cannot be made: Not a directory"
    assert everything_in(tmp_path) == ["file", "runs"]


@pytest.mark.parametrize("command", ["report", "claims", "status"])
def test_a_missing_folder_of_runs_is_a_clear_error(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
):
    monkeypatch.chdir(tmp_path)
    advice = "pass the folder that `emabank run` wrote its runs to"
    assert error_of(capsys, command, code=1) == f"runs does not exist; {advice}"
    (tmp_path / "file").touch()
    assert error_of(capsys, command, "file", code=1) == f"file is not a folder; {advice}"
    assert everything_in(tmp_path) == ["file"]


def test_a_file_where_a_folder_is_to_be_made_is_named(tmp_path: Path, capsys: Capture):
    (tmp_path / "file").touch()
    message = error_of(capsys, "demo", "--epochs", "1", "--out", str(tmp_path / "file"), code=1)
    assert message == f"{tmp_path}/file: A file, not a folder"


def test_a_full_disk_is_a_clear_error_and_leaves_no_partial_file(tmp_path: Path):
    result = run_with_file_limit(1000, ["demo", "--epochs", "1", "--out", str(tmp_path)], "emabank.study.demo")
    assert result.returncode == 1, result.stderr
    progress, error = result.stderr.splitlines()
    assert progress.startswith("epoch 1/1")
    assert error.startswith(f"emabank: {tmp_path}/rows.json: Could not be written (File too large)")
    assert everything_in(tmp_path) == []


@pytest.mark.parametrize("limit", [10, 29_000])
def test_a_full_disk_in_a_report_is_a_clear_error_and_leaves_no_partial_file(limit: int, runs: Path):
    for name in ("generalization", "constant-lr", "bootstrap", "sampling-period"):
        (runs / f"study-demo-{name}.json").unlink()
    result = run_with_file_limit(limit, ["report", str(runs)], "emabank.study.reporting")
    assert result.returncode == 1, result.stderr
    *progress, error = result.stderr.splitlines()
    assert re.match(r"emabank: \S+: Could not be written \(File too large\)", error), result.stderr
    assert all(line.startswith("files of the report: ") for line in progress)
    written = [path for path in (runs / "report").rglob("*") if path.is_file()]
    assert all(path.stat().st_size < limit and not path.name.startswith(".") for path in written)
    assert "index.html" not in [path.name for path in written]


@pytest.mark.slow
def test_a_full_disk_in_a_protocol_is_a_clear_error_and_leaves_no_partial_file(tmp_path: Path):
    words = ["protocol", "--epochs", "1", "--no-swa", "--seeds", "1", "--rates", "0.4", "--subset", "100", "--runs"]
    result = run_with_file_limit(10_000, [*words, str(tmp_path)], "emabank.study.launch")
    assert result.returncode == 1 and "File too large" in result.stderr and result.stdout == ""
    (folder,) = tmp_path.iterdir()
    last = result.stderr.splitlines()[-1]
    assert last.startswith("emabank: 1 of 1 runs failed, the first with ")
    assert last.endswith(f": tune, rate 0.4, seed 0; see {folder}/log.txt, then start it again")
    complete = {"config.json", "environment.json", "failed.json", "lock", "log.txt", "progress.json"}
    assert set(everything_in(folder)) <= complete


def test_ctrl_c_prints_one_line_and_no_traceback(tmp_path: Path):
    command = (*COMMAND, "demo", "--out", str(tmp_path))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("epoch 1/"):
                break
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "emabank: interrupted" and "Traceback" not in stderr


def test_a_closed_pipe_prints_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = subprocess.run([*COMMAND, "protocol", "--help"], stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert result.returncode == 1 and result.stderr == b""


# Data ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dry", [True, False])
def test_missing_data_is_an_error_with_the_command_to_fetch_it(dry: bool, tmp_path: Path, capsys: Capture):
    place = ["--data", str(tmp_path / "data"), "--runs", str(tmp_path / "runs")]
    message = error_of(capsys, "protocol", "--dataset", "cifar10", *place, *["--dry-run"] * dry, code=1)
    assert message.startswith(f"{tmp_path}/data holds neither cifar-10-batches-py/data_batch_1 and ")
    assert f"nor cifar-10-python.tar.gz; run `emabank data fetch cifar10 --data {tmp_path}/data`" in message
    assert everything_in(tmp_path) == []


def test_missing_data_fails_a_study_with_the_command_to_fetch_it(tmp_path: Path, capsys: Capture):
    place = ["--data", str(tmp_path / "data"), "--runs", str(tmp_path / "runs")]
    assert main(["run", "label-noise", "--scale", "small", *place]) == 1
    output = capsys.readouterr()
    message = " ".join(output.err.split())
    assert output.out == "" and message.startswith("label-noise could not be finished: cifar100n-resnet34: ")
    assert all(f"run `emabank data fetch {name} " in message for name in ("cifar10n", "cifar100n"))
    assert "next:" not in message
    (manifest,) = (tmp_path / "runs").glob("*.json")
    assert json.loads(manifest.read_text())["state"] == "failed"
    assert main(["status", str(tmp_path / "runs")]) == 0
    assert "failed: cifar100n-resnet34: " in " ".join(capsys.readouterr().out.split())


def test_data_check_and_fetch_list_missing_and_damaged_files(tmp_path: Path, capsys: Capture):
    for word in ("check", "fetch"):  # needs no network
        assert main(["data", word, "digits"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "digits: complete"
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py/test_batch").write_bytes(b"short")
    assert main(["data", "check", "cifar10", "--data", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert output.err == ""
    lines = output.out.splitlines()
    assert sum(line.startswith("missing  ") for line in lines) == 6
    assert sum(line.startswith("damaged  ") and "test_batch" in line for line in lines) == 1
    assert lines[-1].startswith(f"cifar10: not complete; `emabank data fetch cifar10 --data {tmp_path}` ")


# Real studies --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_interrupted_study_resumes_is_reported_and_trains_nothing_twice(
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
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "emabank: interrupted; the same command resumes"
    (interrupted,) = (path.parent for path in (tmp_path / "runs").glob("*/config.json"))

    def command(*words: str) -> str:
        assert main(words) == 0
        output = capsys.readouterr()
        assert "emabank: " not in output.err
        return output.out + output.err

    assert "1 run: 0 done, 1 interrupted" in command("status")
    output = command("report")
    assert "study bootstrap, demo: interrupted; `emabank run bootstrap " in output
    assert f"  {interrupted.name}: interrupted before its end; the same command resumes" in output
    assert re.search(r"next: `emabank run bootstrap .*--jobs 1`\.\n", output)

    output = command(*words[len(COMMAND) :])
    assert "done: bootstrap" in output and "Next: `emabank report` for tables, figures and an HTML page" in output
    assert len(json.loads((interrupted / "environment.json").read_text())["sessions"]) == 2
    assert "3 runs: 3 done" in command("status")
    assert "Skipped:" not in command("report") and (tmp_path / "runs/report/index.html").exists()
    assert "started" not in command(*words[len(COMMAND) :]), "nothing is trained again"


@pytest.mark.slow
def test_a_study_whose_runs_all_diverge_exits_with_code_1(tmp_path: Path):
    words = [*COMMAND, "run", "bootstrap", *SMALL, "--set", "rates=[1e9]"]
    result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 1 and result.stdout == ""
    reason = "cifar100-resnet18: with seed 0 the training diverged at every learning rate"
    assert f"bootstrap could not be finished: {reason}" in result.stderr
    result = subprocess.run([*COMMAND, "report"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0 and f"study bootstrap, demo: failed: {reason}" in result.stdout
