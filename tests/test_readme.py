"""The README is run: its Python blocks in order, and every command it mentions has to exist."""

import re
import shlex
from importlib import metadata
from pathlib import Path

import pytest

from emabank.study.arguments import COMMANDS

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
EXTRAS = set(metadata.metadata("emabank").get_all("Provides-Extra") or [])


def blocks(text: str, *languages: str) -> list[tuple[int, str]]:
    """The fenced blocks in one of the languages, each with the number of its first line."""
    found = re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", text, re.MULTILINE | re.DOTALL)
    return [(text[: block.start(2)].count("\n") + 1, block[2]) for block in found if block[1] in languages]


def run_python(text: str, filename: str = "README.md") -> int:
    """Run the Python blocks in one namespace, as one reader would; returns how many there were."""
    namespace: dict[str, object] = {"__name__": "readme"}
    found = blocks(text, "python")
    for line, code in found:
        # Empty lines before it, so that a traceback has the README's line numbers.
        exec(compile("\n" * (line - 1) + code, filename, "exec"), namespace)
    return len(found)


def commands(text: str) -> list[str]:
    """Every shell command: the lines of shell blocks, and `make ...` and `emabank ...` in running text."""
    lines = [line for _, block in blocks(text, "", "bash", "sh", "shell", "console") for line in block.splitlines()]
    lines = [line.strip().removeprefix("$ ") for line in lines]
    inline = re.findall(r"`((?:make|emabank|pip)(?: [^`\n]+)?)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    return [line for line in [*lines, *inline] if line and not line.startswith("#")]


def fault(command: str) -> str | None:
    """Why a command cannot be right, or None."""
    program, *arguments = shlex.split(command, comments=True)
    match program:
        case "make":
            unknown = [a for a in arguments if not a.startswith("-") and "=" not in a and a not in TARGETS]
            return f"no target {unknown}" if unknown else None
        case "emabank":
            known = not arguments or arguments[0] in COMMANDS or arguments[0] in ("--help", "--version")
            return None if known else f"no command {arguments[0]}"
        case "pip":
            asked = set(re.findall(r"\w+", ",".join(re.findall(r"\[(.*?)\]", command))))
            return f"no extras {asked - EXTRAS}" if asked - EXTRAS else None
        case "git" | "cd":
            return None
        case "python" | "python3" | ".venv/bin/python":
            files = [a for a in arguments if a.endswith(".py")]
            return next((f"no file {name}" for name in files if not (ROOT / name).exists()), None)
    return f"unknown program {program}"


def test_the_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_python(README.read_text()) > 0


def test_every_command_exists():
    mentioned = commands(README.read_text())
    assert {"make demo", "make test"} <= set(mentioned)
    assert {command: fault(command) for command in mentioned if fault(command)} == {}


def test_every_link_to_a_file_leads_somewhere():
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)|src=\"([^\"]+)\"", README.read_text())
    local = [link for pair in links for link in pair if link and "://" not in link]
    assert [link for link in local if not (ROOT / link).exists()] == []


def test_control_a_block_that_fails_is_seen():
    with pytest.raises(ZeroDivisionError):
        run_python("Text\n```python\nx = 1\n```\nmore\n```python\nx / 0\n```\n")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("make coffee", "no target ['coffee']"),
        ("emabank fly", "no command fly"),
        ('pip install "emabank[stduy]"', "no extras {'stduy'}"),
        ("python nowhere.py", "no file nowhere.py"),
        ("curl example.org", "unknown program curl"),
    ],
)
def test_control_a_command_that_is_not_there_is_seen(command, why):
    assert commands(f"```bash\n{command}  # words\n```") == [f"{command}  # words"]
    assert fault(command) == why


def test_control_the_commands_there_are_pass():
    text = (
        'Try `make demo` or `emabank demo --epochs 3`.\n```console\n$ pip install "emabank[study]"\n$ make test\n```\n'
    )
    assert len(commands(text)) == 4
    assert not any(fault(command) for command in commands(text))
