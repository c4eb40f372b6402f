"""The command: what it prints, and how it ends."""

import signal
import subprocess
import sys

import pytest
from interpreter import run

import emabank
from emabank.cli import COMMANDS, main

COMMAND = (sys.executable, "-m", "emabank")


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
        (["--version", "demo"], "--version"),
    ],
)
def test_wrong_arguments_are_named(arguments, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["tyro", "rich", "numpy", "matplotlib"])
def test_a_library_only_installation_says_what_to_install(missing, tmp_path):
    arguments = ["demo", "--epochs", "1", "--out", str(tmp_path)]
    finished = run(f"from emabank.cli import main; sys.exit(main({arguments}))", blocked=(missing,))
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
import emabank.study.demo
from emabank.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
sys.exit(main(["demo", "--epochs", "1", "--out", {str(tmp_path)!r}]))
""")
    assert finished.returncode == 1, finished.stderr
    assert finished.stderr.startswith(f"emabank: {tmp_path}/rows.json: Could not be written (File too large)")
    assert len(finished.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


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


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("emabank.study.demo.run_demo", lambda config: [][0])
    with pytest.raises(IndexError):
        main(["demo"])
