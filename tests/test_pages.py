"""The pages are true: their Python blocks run in order, their commands are understood, their links lead somewhere."""

import re
import socket
from importlib import import_module
from pathlib import Path

import pytest
from pages import (
    PAGES,
    ROOT,
    arguments_of,
    blocks,
    fault,
    local_links,
    mentioned_commands,
    name_of,
    run_python,
    shown_commands,
    words_of,
)

from emabank.study.arguments import COMMANDS, parse
from tests.support.files import state, write

README = ROOT / "README.md"
OWN_TEST = {"docs/integrations.md"}  # needs the frameworks: test_frameworks_page.py
WITH_PYTHON = [page for page in PAGES if blocks(page.read_text(), "python") and name_of(page) not in OWN_TEST]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_the_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    for step in (1, 2, 3):  # for docs/average.md, which is about checkpoints that exist
        write(Path(f"checkpoints/{step}.safetensors"), state(step))
    for name, value in one_process().items():  # for docs/cluster.md, which torchrun would tell so
        monkeypatch.setenv(name, value)
    assert run_python(page.read_text(), name_of(page)) > 0


def one_process() -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def test_the_pages_with_code_are_those_that_should_have_some():
    assert {"README.md", "docs/index.md", "docs/guide.md", "docs/cluster.md", "docs/posthoc.md"} <= {
        name_of(page) for page in WITH_PYTHON
    }


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_exists(page: Path):
    text = page.read_text()
    commands = [*shown_commands(text), *mentioned_commands(text)]
    assert {command: fault(command) for command in commands if fault(command)} == {}


def test_the_readme_says_how_to_begin():
    text = README.read_text()
    begin = {" ".join(words_of(command)) for command in [*shown_commands(text), *mentioned_commands(text)]}
    assert {"make demo", "make test", ". .venv/bin/activate"} <= begin


SHOWN = [
    (name_of(page), command)
    for page in PAGES
    for command in shown_commands(page.read_text())
    if arguments_of(command) is not None
]


@pytest.mark.parametrize(("page", "command"), SHOWN)
def test_the_arguments_of_every_command_are_understood(page: str, command: str):
    arguments = arguments_of(command)
    if arguments and arguments[0] != "list":  # the words of `list` end the process where they are wrong
        assert isinstance(parse(arguments, description=""), COMMANDS[arguments[0]])


def test_many_commands_are_shown():
    assert len(SHOWN) >= 25


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_to_a_file_leads_somewhere(page: Path):
    assert [link for link in local_links(page.read_text()) if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "log.md"], ids=name_of)  # the log is history
def test_every_name_of_the_package_exists(page: Path):
    assert [name for name in names_in(page.read_text()) if not exists(name)] == []


def names_in(text: str) -> list[str]:
    """Dotted names of the package that stand alone between backticks."""
    return re.findall(r"`(emabank(?:\.(?!pt`)\w+)+)`", text)


def exists(name: str) -> bool:
    package, *rest = name.split(".")
    found: object = import_module(package)
    for place, part in enumerate(rest, 1):
        if not hasattr(found, part):
            try:
                import_module(".".join([package, *rest[:place]]))
            except ImportError:
                return False
        found = getattr(found, part)
    return True


def test_control_a_name_that_is_not_there_is_seen():
    assert names_in("Call `emabank.rules.half_life` or `emabank.rules.thirds`.") == [
        "emabank.rules.half_life",
        "emabank.rules.thirds",
    ]
    assert exists("emabank.rules.half_life") and not exists("emabank.rules.thirds") and not exists("emabank.no.such")


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
        ("torchrun -m other", "torchrun of something else"),
    ],
)
def test_control_a_command_that_is_not_there_is_seen(command: str, why: str):
    assert shown_commands(f"```sh\n{command}  # words\n```") == [f"{command}  # words"]
    assert fault(command) == why


def test_control_an_option_that_is_not_there_is_seen():
    with pytest.raises(SystemExit):
        parse(arguments_of("emabank run all --sclae demo") or [], description="")


def test_control_the_commands_there_are_pass():
    text = 'Try `make demo` or `emabank demo --epochs 3`.\n```sh\npip install "emabank[study]"\nmake \\\n  test\n```\n'
    commands = [*shown_commands(text), *mentioned_commands(text)]
    assert len(commands) == 4
    assert not any(fault(command) for command in commands)
