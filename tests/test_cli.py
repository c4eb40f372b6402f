"""The command emabank: what it prints, how it ends, and what it leaves."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import emabank
from emabank.study import arguments as arguments_module
from emabank.study.arguments import COMMANDS
from emabank.study.cli import main
from emabank.study.data import cifar, cifar_n, fetch
from emabank.study.data.catalogue import CIFAR10, DATASETS
from emabank.study.studies.catalogue import STUDIES
from tests.study.data.made_up import cifar_batch, python2_pickle, tar_gz, write_files
from tests.study.small_folder import finished as finished
from tests.study.small_folder import runs as runs
from tests.support.processes import run

COMMAND = (sys.executable, "-m", "emabank.study")


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


def test_help_of_the_demo_explains_every_option(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["demo", "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    for option in ("--epochs", "--noise", "--seed", "--out", "--threads"):
        assert option in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demmo"], "demmo"),
        (["demo", "--epoch", "3"], "--epochs"),
        (["demo", "--epochs", "three"], "three"),
        (["demo", "--epochs", "0"], "epochs is 0; give 1 or more"),
        (["demo", "--noise", "40"], "noise is 40.0; give a share from 0 to 1"),
        (["protocol", "--dataset", "cifar11"], "cifar11"),
        (["data", "check", "cifar11"], "cifar11"),
        (["--version", "demo"], "--version"),
    ],
)
def test_wrong_arguments_are_named(arguments, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.out == ""


def answer(words: list[str], options: Any, monkeypatch, capsys) -> tuple[object, str, str]:
    """What is said to words, where commands are known with their options or without."""
    if options is not None:
        monkeypatch.setattr(arguments_module, "_may_name_options", lambda given: options)
    code = code_of(*words)
    monkeypatch.undo()
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    "words", ["", "-h", "--help", "lst", "lst -h", "--help lst", "-x", "all dynamics", "-x run", "lst run", "--epoch 3"]
)
def test_no_answer_misses_the_options_of_commands_where_they_are_left_out(words, monkeypatch, capsys):
    usual = answer(words.split(), None, monkeypatch, capsys)
    assert usual == answer(words.split(), True, monkeypatch, capsys)
    assert usual[1] or usual[2], "something is said"


def test_what_is_refused_is_one_sentence(tmp_path, capsys):
    file = tmp_path / "study.toml"
    file.write_text("[training]\nepoch = 3\n")
    for words, said in (
        (["--milestones", "0.9", "0.1"], "milestones are 0.9 0.1; give rising shares of the run, after the warm-up, "),
        (["--config", str(file)], f"{file}, training: unknown key 'epoch'; there are network, width, epochs, "),
        (["--config", f"{file}x"], f"--config is {file}x, which is no file; give a TOML file "),
    ):
        sentence = failed(capsys, "protocol", *words, code=2)
        assert sentence.startswith(said) and sentence.endswith("(`emabank protocol --help` explains every option)")
    assert everything_in(tmp_path) == ["study.toml"]


def test_what_is_refused_is_one_sentence_in_a_process_too():
    finished = subprocess.run([*COMMAND, "protocol", "--rates", "0"], capture_output=True, text=True)
    assert finished.returncode == 2 and finished.stdout == ""
    assert finished.stderr == (
        "emabank: rates are 0.0; give one or more learning rates above 0, each once (`emabank protocol --help` "
        "explains every option)\n"
    )


def test_a_file_that_may_not_be_read_is_one_sentence(tmp_path, monkeypatch, capsys):
    (tmp_path / "study.toml").touch()

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    said = failed(capsys, "protocol", "--config", str(tmp_path / "study.toml"), code=1)
    assert said == f"{tmp_path}/study.toml: Permission denied"


@pytest.mark.parametrize("missing", ["tyro", "rich", "numpy", "matplotlib"])
def test_a_library_only_installation_says_what_to_install(missing, tmp_path):
    arguments = ["demo", "--epochs", "1", "--out", str(tmp_path)]
    finished = run(f"from emabank.study.cli import main; sys.exit(main({arguments}))", blocked=(missing,))
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
from emabank.study.cli import main
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
from emabank.study.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
sys.exit(main({[*words, str(tmp_path)]}))
""")
    assert finished.returncode == 1 and "File too large" in finished.stdout
    (folder,) = tmp_path.iterdir()
    said = f"emabank: 1 of 1 runs failed: tune, rate 0.4, seed 0; see {folder}/log.txt, then start it again\n"
    assert finished.stderr == said
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
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "emabank: interrupted\n"


def test_a_protocol_that_is_interrupted_says_how_it_goes_on(monkeypatch, capsys):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("emabank.study.launch.launch_protocol", interrupted)
    said = failed(capsys, "protocol", code=130)
    assert said == "interrupted; the same command goes on from where it was"


@pytest.mark.parametrize("words", [["protocol", "--help"], ["claims"]])
def test_a_reader_that_has_had_enough_is_no_failure_to_talk_about(words: list[str], runs: Path):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([*COMMAND, *words], stdout=writing, stderr=subprocess.PIPE, cwd=runs.parent)
    finally:
        os.close(writing)
    assert done.returncode == 1 and done.stderr == b""


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("emabank.study.demo.run_demo", lambda config: [][0])
    with pytest.raises(IndexError):
        main(["demo"])


# Data that is missing or wrong ---------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """CIFAR-10 with 4 images a file, which its readers take for the whole: what the files hold, by name."""
    layout = cifar._LAYOUTS["cifar10"]
    layout = layout._replace(train=dict.fromkeys(layout.train, 4), test={"test_batch": 4})
    monkeypatch.setitem(cifar._LAYOUTS, "cifar10", layout)
    monkeypatch.setattr(cifar_n, "_IMAGES", 20)
    names = [*layout.train, *layout.test]
    return {f"cifar-10-batches-py/{name}": cifar_batch(seed, 4, 10) for seed, name in enumerate(names)}


def pickled(files: dict[str, dict[str, Any]]) -> dict[str, bytes]:
    return {name: python2_pickle(content) for name, content in files.items()}


def planned(folder: Path, dataset: str = "cifar10") -> list[str]:
    """The words of a command that reads the data and trains nothing."""
    return ["protocol", "--dataset", dataset, "--data", str(folder), "--runs", str(folder / "runs"), "--dry-run"]


def test_data_that_is_there_is_planned_with(tmp_path, small, capsys):
    write_files(tmp_path, pickled(small))
    before = everything_in(tmp_path)
    assert main(planned(tmp_path)) == 0
    printed = capsys.readouterr()
    assert 'dataset = "cifar10"' in printed.out and printed.out.count("waiting") == 6 and printed.err == ""
    assert everything_in(tmp_path) == before


@pytest.mark.parametrize("dry", [True, False])
def test_a_missing_folder_is_named_with_its_files_and_how_to_get_them(dry, tmp_path, capsys):
    words = planned(tmp_path / "data")[: None if dry else -1]
    said = failed(capsys, *words, code=1)
    assert said.startswith(f"{tmp_path}/data holds neither cifar-10-batches-py/data_batch_1, ")
    assert f"nor cifar-10-python.tar.gz; run `emabank data fetch cifar10 --data {tmp_path}/data`" in said
    assert not list(tmp_path.iterdir())


def test_a_truncated_archive_is_one_sentence(tmp_path, small, capsys):
    whole = tar_gz(pickled(small))
    write_files(tmp_path, {"cifar-10-python.tar.gz": whole[: len(whole) // 2]})
    said = failed(capsys, *planned(tmp_path), code=1)
    assert f"{tmp_path}/cifar-10-python.tar.gz" in said
    assert everything_in(tmp_path) == ["cifar-10-python.tar.gz"]


def test_a_damaged_file_is_one_sentence(tmp_path, small, capsys):
    files = pickled(small)
    files["cifar-10-batches-py/data_batch_3"] = files["cifar-10-batches-py/data_batch_3"][:1000]
    write_files(tmp_path, files)
    assert f"{tmp_path}/cifar-10-batches-py/data_batch_3" in failed(capsys, *planned(tmp_path), code=1)
    assert everything_in(tmp_path) == sorted(files)


def test_labels_that_do_not_align_are_one_sentence(tmp_path, small, capsys):
    write_files(tmp_path, pickled(small))
    clean = np.array([label for name, file in small.items() if "data" in name for label in file["labels"]])
    stored = {"clean_label": clean, "worse_label": (clean + 1) % 10}
    torch.save(stored, tmp_path / "CIFAR-10_human.pt")
    assert main(planned(tmp_path, "cifar10n")) == 0
    capsys.readouterr()
    stored["clean_label"] = clean[::-1].copy()
    torch.save(stored, tmp_path / "CIFAR-10_human.pt")
    said = failed(capsys, *planned(tmp_path, "cifar10n"), code=1)
    assert said.startswith(f"the clean labels of {tmp_path}/CIFAR-10_human.pt differ from the official ones at ")
    assert not (tmp_path / "runs").exists()


def test_data_check_says_what_stands_and_ends_accordingly(tmp_path, capsys):
    assert main(["data", "check", "digits"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "digits: complete"
    write_files(tmp_path, {"cifar-10-batches-py/test_batch": b"short"})
    assert main(["data", "check", "cifar10", "--data", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert lines[0].startswith("CIFAR-10: published by Alex Krizhevsky") and len(lines) == 9
    assert sum(line.startswith("missing  ") for line in lines) == 6
    assert sum(line.startswith("damaged  ") and "test_batch" in line for line in lines) == 1
    assert lines[-1] == (
        f"cifar10: not complete; `emabank data fetch cifar10 --data {tmp_path}` downloads what is missing or wrong"
    )


def test_fetching_without_a_network_is_one_sentence(tmp_path, monkeypatch, capsys):
    download = replace(CIFAR10.downloads[0], url="http://127.0.0.1:9/cifar-10-python.tar.gz")  # nobody listens there
    monkeypatch.setitem(DATASETS, "cifar10", replace(CIFAR10, downloads=(download,)))
    monkeypatch.setattr(fetch, "_TIMEOUT", 1)
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(variable, "127.0.0.1")
    said = failed(capsys, "data", "fetch", "cifar10", "--data", str(tmp_path / "data"), code=1)
    assert said.startswith("http://127.0.0.1:9/cifar-10-python.tar.gz could not be reached or broke off; ")
    assert f"`emabank data check cifar10 --data {tmp_path}/data` will verify it" in said
    assert everything_in(tmp_path) == []


def test_fetching_where_nothing_can_be_written_is_one_sentence(tmp_path, capsys):
    (tmp_path / "file").touch()
    said = failed(capsys, "data", "fetch", "cifar10", "--data", str(tmp_path / "file" / "data"), code=1)
    assert said.startswith(f"{tmp_path}/file/data: the files of cifar10 could not be put there (Not a directory)")


def test_fetching_what_is_there_needs_no_network(capsys):
    assert main(["data", "fetch", "digits"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "digits: complete"


# Studies --------------------------------------------------------------------------------------------------------------


SMALL = ["--seeds", "1", "--set", "rates=[0.2]", "epochs=3", "warmup_epochs=0", "subset=100", "width=4", "swa=false"]


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
    monkeypatch.setattr("emabank.study.launch_studies.launch_studies", launched)
    monkeypatch.setattr("emabank.study.launch_studies.show_studies_plan", Launched(AssertionError("no plan was asked")))
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
    assert said == "interrupted; the same command goes on from where it was"


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
    monkeypatch.setattr("emabank.study.launch_studies.show_studies_plan", plan)
    monkeypatch.setattr("emabank.study.launch_studies.launch_studies", never)
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
        (["run", "dynamics", "--seeds", "0"], "seeds is 0; give 1 or more (`emabank run --help` explains"),
        (["run", "dynamics", "--set", "nonsense"], "--set: 'nonsense' is no setting; give key=value, "),
        (["run", "dynamics", "--set", "colour=red"], "--set: there is no setting 'colour'; there are "),
    ],
)
def test_what_cannot_be_run_is_one_sentence_and_code_2(
    words: list[str], said: str, launch: Launched, capsys: pytest.CaptureFixture[str]
):
    assert failed(capsys, *words, code=2).startswith(said)
    assert not launch.given


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
def test_a_full_disk_in_a_report_is_one_sentence_and_leaves_no_part_of_a_file(limit: int, tmp_path: Path):
    # A limit on the size of files fails a write in the way a full disk does.
    (tmp_path / "runs").mkdir()
    done = run(f"""
import resource, signal
import emabank.study.reporting
from emabank.study.cli import main
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
from emabank.study.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (29_000, 29_000))
sys.exit(main(["report", {str(runs)!r}]))
""")
    assert done.returncode == 1, done.stderr
    assert re.fullmatch(r"emabank: \S+\.png: Could not be written \(File too large\)\n", done.stderr), done.stderr
    assert not list((runs / "report").rglob(".*"))


# In earnest ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_study_is_interrupted_goes_on_is_reported_and_costs_nothing_again(tmp_path: Path):
    words = [*COMMAND, "run", "bootstrap", *SMALL, "--set", "epochs=150", "--jobs", "1"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if ": epoch " in line:
                break
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert said == "emabank: interrupted; the same command goes on from where it was\n"
    (interrupted,) = (path.parent for path in (tmp_path / "runs").glob("*/config.json"))

    def command(*words: str) -> str:
        done = subprocess.run([*COMMAND, *words], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        return done.stdout

    assert "1 runs: 0 done, 0 running, 1 waiting, 0 failed" in command("status")
    printed = command("report")
    assert "study bootstrap, demo: not finished: it runs, or was interrupted (`emabank run bootstrap " in printed
    assert f"  {interrupted.name}: interrupted before its end; the same command goes on" in printed
    assert re.search(r"next: `emabank run bootstrap .*--jobs 1`\.\n$", printed)

    printed = command(*words[len(COMMAND) :])
    assert "done: bootstrap" in printed and "next: `emabank report` makes tables, figures and a page of it" in printed
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
