"""The command: what it prints, in which sentence and with which code it ends, and what it leaves."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import emabank
from emabank.study.commands import main
from emabank.study.commands.parsing import COMMANDS
from emabank.study.data.catalogue import CIFAR10, DATASETS
from tests.study.data.made_up import tar_gz, write_files
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


def everything_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"emabank {emabank.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_every_command(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in (*COMMANDS, "--version"))


@pytest.mark.parametrize("words", [["demmo"], ["--version", "demo"], ["run"], ["run", "nonsense"]])
def test_words_that_make_no_sense_are_code_2(words, capsys):
    assert code_of(*words) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err


def test_a_file_that_does_not_fit_is_one_sentence(tmp_path, monkeypatch, capsys):
    file = tmp_path / "study.toml"
    file.write_text("[training]\nepoch = 3\n")
    sentence = failed(capsys, "protocol", "--config", str(file), code=2)
    assert sentence.startswith(f"{file}, training: unknown key 'epoch'; there are network, width, epochs, ")

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert failed(capsys, "protocol", "--config", str(file), code=1) == f"{file}: Permission denied"


@pytest.mark.parametrize("missing", ["tyro", "numpy"])
def test_a_library_only_installation_says_what_to_install(missing, tmp_path):
    arguments = ["demo", "--epochs", "1", "--out", str(tmp_path)]
    finished = run(f"from emabank.study.commands import main; sys.exit(main({arguments}))", blocked=(missing,))
    assert finished.returncode == 2
    assert "Traceback" not in finished.stderr
    # The last line: without numpy torch has a warning of its own before it.
    assert finished.stderr.splitlines()[-1] == (
        f'emabank: the commands need the package {missing}, which is missing: pip install "emabank[study]"'
    )


def test_an_output_folder_that_cannot_be_made_is_one_sentence(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["demo", "--out", str(tmp_path / "file" / "demo")]) == 1
    printed = capsys.readouterr()
    assert printed.out == "", "it has to fail before the training"
    assert printed.err == f"emabank: {tmp_path}/file/demo: Not a directory\n"


def test_a_full_disk_is_one_sentence_and_leaves_no_part_of_a_file(tmp_path):
    # A limit on the size of files fails a write in the way a full disk does.
    finished = run(f"""
import resource, signal
import torch.distributed.nn  # torch 2.6 writes a file of its own while this is imported
import emabank.study.demo
from emabank.study.commands import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
sys.exit(main(["demo", "--epochs", "1", "--out", {str(tmp_path)!r}]))
""")
    assert finished.returncode == 1, finished.stderr
    assert finished.stderr.startswith(f"emabank: {tmp_path}/rows.json: Could not be written (File too large)")
    assert len(finished.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_full_disk_in_a_run_of_a_protocol_is_one_sentence_and_leaves_nothing_in_the_way(tmp_path):
    words = ["protocol", "--epochs", "1", "--no-swa", "--seeds", "1", "--rates", "0.4", "--subset", "100", "--runs"]
    finished = run(f"""
import resource, signal
import emabank.study.launch
from emabank.study.commands import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
sys.exit(main({[*words, str(tmp_path)]}))
""")
    assert finished.returncode == 1 and "File too large" in finished.stdout
    (folder,) = tmp_path.iterdir()
    assert finished.stderr.startswith("emabank: 1 of 1 runs failed, the first with ")
    assert finished.stderr.endswith(f": tune, rate 0.4, seed 0; see {folder}/log.txt, then start it again\n")
    whole = {"config.json", "environment.json", "failed.json", "lock", "log.txt", "progress.json"}
    assert set(everything_in(folder)) <= whole


def test_ctrl_c_is_one_line(tmp_path):
    command = (*COMMAND, "demo", "--out", str(tmp_path))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch 1/"):
                break
        process.send_signal(signal.SIGINT)
        _, sentence = process.communicate(timeout=60)
    assert process.returncode == 130
    assert sentence == "emabank: interrupted\n"


def test_a_reader_that_has_had_enough_is_no_failure_to_talk_about():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        finished = subprocess.run([*COMMAND, "protocol", "--help"], stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert finished.returncode == 1 and finished.stderr == b""


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("emabank.study.demo.run_demo", lambda config: [][0])
    with pytest.raises(IndexError):
        main(["demo"])


# Data that is missing or wrong ---------------------------------------------------------------------------------------


def test_a_truncated_archive_is_one_sentence(tmp_path, capsys):
    whole = tar_gz({f"cifar-10-batches-py/{name}": b"x" for name in ("data_batch_1", "test_batch")})
    write_files(tmp_path, {"cifar-10-python.tar.gz": whole[: len(whole) // 2]})
    words = ["protocol", "--dataset", "cifar10", "--data", str(tmp_path), "--runs", str(tmp_path / "runs"), "--dry-run"]
    assert f"{tmp_path}/cifar-10-python.tar.gz" in failed(capsys, *words, code=1)
    assert everything_in(tmp_path) == ["cifar-10-python.tar.gz"]


def test_fetching_without_a_network_is_one_sentence(tmp_path, monkeypatch, capsys):
    download = replace(CIFAR10.downloads[0], url="http://127.0.0.1:9/cifar-10-python.tar.gz")  # nobody listens there
    monkeypatch.setitem(DATASETS, "cifar10", replace(CIFAR10, downloads=(download,)))
    monkeypatch.setattr("emabank.study.data.download._TIMEOUT", 1)
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(variable, "127.0.0.1")
    sentence = failed(capsys, "data", "fetch", "cifar10", "--data", str(tmp_path / "data"), code=1)
    assert sentence.startswith("http://127.0.0.1:9/cifar-10-python.tar.gz could not be reached or broke off; ")
    assert f"`emabank data check cifar10 --data {tmp_path}/data` will verify it" in sentence
    assert everything_in(tmp_path) == []


# Running -------------------------------------------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[..., None]:
    def stage(*_: object, **__: object) -> None:
        raise error

    return stage


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("launch.launch_studies", ["run", "dynamics"]),
        ("launch.launch_protocol", ["protocol"]),
        ("reporting.make_report", ["report"]),
        ("reporting.show_claims", ["claims"]),
        ("status.show_status", ["status"]),
        ("studies.listing.list_studies", ["list"]),
    ],
)
def test_what_stops_a_command_is_one_sentence(stage: str, words: list[str], monkeypatch, capsys):
    for error, code, sentence in (
        (ValueError("the device is cuda"), 1, "the device is cuda"),
        (OSError(28, "No space left on device", "runs/x"), 1, "runs/x: No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted" + "; the same command resumes" * stage.startswith("launch")),
    ):
        monkeypatch.setattr(f"emabank.study.{stage}", raising(error))
        assert failed(capsys, *words, code=code) == sentence


def test_a_dry_run_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", "bootstrap", *SMALL, "--dry-run", "--runs", str(tmp_path / "runs")]) == 0
    printed = capsys.readouterr()
    assert "tune, rate 0.2, seed 0: waiting, about " in printed.out and printed.err == ""
    assert re.search(r"0 runs are done, \d+ to be trained", " ".join(printed.out.split()))
    assert not list(tmp_path.iterdir())


def test_missing_data_fails_the_study_with_how_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    place = ["--data", str(tmp_path / "data"), "--runs", str(tmp_path / "runs")]
    assert main(["run", "label-noise", "--scale", "small", *place]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("label-noise could not be finished: cifar10n-resnet34: ")
    assert "run `emabank data fetch cifar10 " in printed and "Next:" not in printed
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
    sentence = failed(capsys, "report", str(tmp_path / "runs"), "--out", str(out), code=1)
    assert sentence == f"{out}: The folder for files.json cannot be made: Not a directory"
    sentence = failed(capsys, "report", str(tmp_path / "runs"), "--out", str(tmp_path / "file"), code=1)
    assert sentence == f"{tmp_path}/file: The folder for files.json cannot be made: File exists"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "runs"]


@pytest.mark.parametrize("limit", [10, 2_500, 40_000])
def test_a_full_disk_stops_a_report_in_one_sentence_and_leaves_no_part_of_a_file(limit: int, tmp_path: Path):
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
        _, sentence = process.communicate(timeout=120)
    assert process.returncode == 130
    assert sentence == "emabank: interrupted; the same command resumes\n"
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
