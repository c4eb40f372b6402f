"""For the tests of the pages (README, docs/ and others): their blocks of code, their commands, their links."""

import re
import shlex
from pathlib import Path

from emabank.study.commands.parsing import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "results").rglob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
_OPTIONAL = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
EXTRAS = set(re.findall(r"^(\w+) = \[", _OPTIONAL, re.MULTILINE))
_STAND_INS = {"STUDY": "label-noise", "SCALE": "demo"}


def name_of(page: Path) -> str:
    """A page as people call it.

    >>> name_of(ROOT / "docs" / "guide.md")
    'docs/guide.md'
    """
    return page.relative_to(ROOT).as_posix()


def blocks(text: str, *languages: str) -> list[tuple[int, str]]:
    """The fenced blocks in one of the languages, each with the number of its first line."""
    found = re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", text, re.MULTILINE | re.DOTALL)
    return [(text[: block.start(2)].count("\n") + 1, block[2]) for block in found if block[1] in languages]


def run_python(text: str, filename: str = "README.md") -> int:
    """Run the Python blocks in one namespace, as one reader would; returns how many there were."""
    namespace: dict[str, object] = {"__name__": "readme"}
    found = blocks(text, "python")
    for line, code in found:
        # Empty lines before it, so that a traceback has the page's line numbers.
        exec(compile("\n" * (line - 1) + code, filename, "exec"), namespace)
    return len(found)


def shown_commands(text: str) -> list[str]:
    """The commands of shell blocks, each on one line."""
    lines = [line for _, block in blocks(text, "sh") for line in block.replace("\\\n", " ").splitlines()]
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def mentioned_commands(text: str) -> list[str]:
    """`make ...`, `emabank ...` and `pip ...` in running text."""
    running = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`((?:make|emabank|pip)(?: [^`\n]+)?)`", running)


def words_of(command: str) -> list[str]:
    """A command as a shell would split it, without its comment, and a study where the page says STUDY.

    >>> words_of("emabank run STUDY --scale demo  # one")
    ['emabank', 'run', 'label-noise', '--scale', 'demo']
    """
    return [_STAND_INS.get(word, word) for word in shlex.split(command, comments=True)]


def fault(command: str) -> str | None:
    """Why a command cannot be right, or None. The arguments of `emabank` are looked at elsewhere."""
    program, *arguments = words_of(command)
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
        case ".":
            return None if arguments == [".venv/bin/activate"] else f"{arguments} is not what make installs"
        case "torchrun":
            return None if arguments[arguments.index("-m") + 1] == "emabank.study" else "torchrun of something else"
        case "python" | "python3" | ".venv/bin/python":
            files = [a for a in arguments if a.endswith(".py")]
            return next((f"no file {name}" for name in files if not (ROOT / name).exists()), None)
    return f"unknown program {program}"


def arguments_of(command: str) -> list[str] | None:
    """What `emabank` is told by a command, also under torchrun; None where it is another program."""
    words = words_of(command)
    name = "emabank.study" if words[0] == "torchrun" else "emabank"
    if words[0] not in ("emabank", "torchrun") or name not in words:
        return None
    return words[words.index(name) + 1 :]


def local_links(text: str) -> list[str]:
    """Links to files, without their anchors."""
    found = re.findall(r"\]\(([^)#\s]+)[^)]*\)|src=\"([^\"]+)\"", text)
    return [link for pair in found for link in pair if link and "://" not in link]
