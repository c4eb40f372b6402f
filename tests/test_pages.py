"""README and docs: their Python blocks run, their commands are understood, and those that take seconds run.

Commands that take minutes run in `make test-commands`. NOT_HERE names what a machine without a GPU or a cluster skips.
"""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from emabank.study.commands.parsing import COMMANDS, parse
from tests.support.files import state, write

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "results").rglob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
STAND_INS = {"STUDY": "label-noise", "SCALE": "demo"}
FRAMEWORKS = ("lightning", "transformers", "accelerate")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks in a language, each with the number of its first line."""
    text = page.read_text()
    matches = re.finditer(rf"^```{language}\b[^\n]*\n(.*?)^```\s*$", text, re.MULTILINE | re.DOTALL)
    return [(text[: match.start(1)].count("\n") + 1, match[1]) for match in matches]


def commands_of(page: Path) -> list[list[str]]:
    """The commands of shell blocks, split as a shell would, with a study where the page says STUDY."""
    lines = [line for _, block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines]
    return [[STAND_INS.get(word, word) for word in command] for command in commands if command]


def arguments_of(command: list[str]) -> list[str] | None:
    """The arguments of `emabank`, also under torchrun; None for another program."""
    name = {"emabank": "emabank", "torchrun": "emabank.study"}.get(command[0])
    return command[command.index(name) + 1 :] if name in command else None


# Python --------------------------------------------------------------------------------------------------------------

WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]
# Namespaces live until the end: freeing a DDP model frees its process group, which waits, with the interpreter locked,
# for a thread of gloo that may still need the interpreter to free the last tensors it has sent.
RUN: list[dict[str, object]] = []


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*smaller than the logging interval")
@pytest.mark.filterwarnings("ignore:.*`isinstance.treespec, LeafSpec.`")
@pytest.mark.filterwarnings("ignore:.*pin_memory. argument is set as true")
@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_the_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page in one namespace, as one reader would run them."""
    if page.name == "integrations.md":
        for framework in FRAMEWORKS:
            pytest.importorskip(framework, reason=f"the extra {framework} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    if page.name == "average.md":  # it is about checkpoints that exist
        for step in (1, 2, 3):
            write(Path(f"checkpoints/{step}.safetensors"), state(step))
    if page.name == "cluster.md":
        for variable, value in one_process().items():
            monkeypatch.setenv(variable, value)
    namespace: dict[str, object] = {"__name__": "page"}
    RUN.append(namespace)
    for line, code in blocks(page, "python"):
        # Empty lines before it, so that a traceback has the page's line numbers.
        exec(compile("\n" * (line - 1) + code, name_of(page), "exec"), namespace)


def one_process() -> dict[str, str]:
    """What torchrun would set."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s:]+)[#)]|src=\"([^\":]+)\"", page.read_text())
    assert [link for pair in links for link in pair if link and not (page.parent / link).exists()] == []


# Commands ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_is_understood(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    optional = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    extras = set(re.findall(r"^(\w+) = \[", optional.partition("\n[")[0], re.MULTILINE))
    for command in commands_of(page):
        arguments = arguments_of(command)
        if arguments and arguments[0] not in ("list", "--help", "--version"):  # `list` ends the process
            assert isinstance(parse(arguments, description=""), COMMANDS[arguments[0]]), command
        elif command[0] == "make":
            assert all(word in targets for word in command[1:] if "=" not in word), command
        elif command[0] == "pip":
            assert set(re.findall(r"\w+", ",".join(re.findall(r"\[(.*?)\]", " ".join(command))))) <= extras, command
        elif command[0].endswith(("python", "python3")):
            assert all((ROOT / word).exists() for word in command if word.endswith(".py")), command
        else:
            assert arguments is not None or command[0] in ("git", "cd", "."), command


DATA = os.environ.get("EMABANK_DATA")
NOT_HERE = {
    r"--device cuda|--scale paper(?!.*--dry-run)": "needs a GPU",
    r"data fetch": "needs a network",
    r"--executor slurm": "needs a cluster with a partition gpu; tests/cluster has a Slurm of its own",
    r"--executor ray --address": "needs a Ray cluster; tests/cluster starts one",
    r"^pip |^git |^cd |^\. ": "what a fresh clone does",
    r"^make ": "a target of its own, which may run these very tests",
    r"^python benchmarks/": "a measurement that wants the machine for itself",
    r"--scale small(?!.*--dry-run)|^python results/": "takes hours; results/ keeps its results",
}
LONG = r"emabank (demo|protocol|run|report|claims|status|bench|advise)\b"


def commands_here(page: Path, *, long: bool) -> list[list[str]]:
    """Those that this machine can run, in the page's order, because one may need another."""
    return [
        command
        for command in commands_of(page)
        if not any(re.search(pattern, " ".join(command)) for pattern in NOT_HERE)
        and bool(re.search(LONG, " ".join(command))) is long
    ]


def run_commands(page: Path, folder: Path, *, long: bool) -> None:
    for command in commands_here(page, long=long):
        has_data = "--data" not in command or DATA is not None
        if not has_data and command[1] != "data":
            continue  # EMABANK_DATA names no folder with the data sets
        for output in [command[place + 1] for place, word in enumerate(command) if word in ("-o", "--output")]:
            shutil.rmtree(folder / output, ignore_errors=True)  # the page shows several ways to one file
            (folder / output).unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "emabank.study", *(arguments_of(command) or [])],
            cwd=folder, capture_output=True, text=True, timeout=3600, check=False,
        )  # fmt: skip
        expected = 0 if has_data else 1  # `emabank data check` says what is missing
        assert done.returncode == expected, f"{name_of(page)}: {command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip(), command
        assert "Traceback" not in done.stderr, command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a reader of the pages has already: data sets, and checkpoints of a training."""
    if DATA is not None:
        (tmp_path / "data").symlink_to(Path(DATA).resolve())
    checkpoints = [f"checkpoints/step-{step}.safetensors" for step in range(1000, 7000, 1000)]
    checkpoints += ["a.pt", "b.pt", "c.pt"]
    checkpoints += [f"output/checkpoint-{step}/model.safetensors" for step in (500, 1000)]
    checkpoints += [f"lightning_logs/version_0/checkpoints/epoch={epoch}-step={10 * epoch}.ckpt" for epoch in (1, 2)]
    for seed, name in enumerate(checkpoints, 1):
        write(tmp_path / name, state(seed))
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if commands_here(page, long=False)], ids=name_of)
def test_the_short_commands_of_a_page_run(page: Path, folder: Path) -> None:
    run_commands(page, folder, long=False)


@pytest.mark.commands
@pytest.mark.parametrize("page", [page for page in PAGES if commands_here(page, long=True)], ids=name_of)
def test_the_long_commands_of_a_page_run(page: Path, folder: Path) -> None:
    run_commands(page, folder, long=True)
