"""The command: what it prints, and how it ends."""

import os
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
from emabank.study.commands import main
from emabank.study.commands.parsing import COMMANDS
from emabank.study.data import cifar
from emabank.study.data.catalogue import CIFAR10, DATASETS
from tests.study.data.made_up import cifar_batch, python2_pickle, tar_gz, write_files
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


def test_a_file_that_does_not_fit_is_one_sentence(tmp_path, capsys):
    file = tmp_path / "study.toml"
    file.write_text("[training]\nepoch = 3\n")
    for words, said in (
        (["--config", str(file)], f"{file}, training: unknown key 'epoch'; there are network, width, epochs, "),
        (["--config", f"{file}x"], f"--config is {file}x, which is no file; give a TOML file"),
    ):
        assert failed(capsys, "protocol", *words, code=2).startswith(said)
    assert everything_in(tmp_path) == ["study.toml"]


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
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "emabank: interrupted\n"


def test_a_protocol_that_is_interrupted_says_how_it_goes_on(monkeypatch, capsys):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("emabank.study.launch.launch_protocol", interrupted)
    said = failed(capsys, "protocol", code=130)
    assert said == "interrupted; the same command resumes"


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


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """CIFAR-10 with 4 images a file, which its readers take for the whole: what the files hold, by name."""
    layout = cifar._LAYOUTS["cifar10"]
    layout = layout._replace(train=dict.fromkeys(layout.train, 4), test={"test_batch": 4})
    monkeypatch.setitem(cifar._LAYOUTS, "cifar10", layout)
    monkeypatch.setattr(cifar, "_IMAGES", 20)
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
    monkeypatch.setattr("emabank.study.data.download._TIMEOUT", 1)
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
