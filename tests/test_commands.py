"""The commands that the pages show are carried out as they stand, page by page, each page in a fresh folder.

Those that take seconds run in `make test`, those that take minutes in `make test-commands`. What a machine without a
GPU or a cluster cannot carry out is named here with its reason; test_pages.py looks whether its words are understood.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import PAGES, arguments_of, name_of, shown_commands, words_of

from tests.support.files import state, write

DATA = os.environ.get("EMABANK_DATA")
NOT_HERE = {
    r"--device cuda": "needs a GPU",
    r"--executor slurm": "needs a cluster with a partition gpu; tests/cluster has a Slurm of its own",
    r"--executor ray --address": "needs a Ray cluster; tests/cluster starts one",
    r"^pip |^git |^cd |^\. ": "what a fresh clone does",
    r"^make ": "a target of its own, which may run these very tests",
    r"^python benchmarks/": "a measurement that wants the machine for itself",
    r"--scale small(?!.*--dry-run)|^python results/": "hours; what came of it is kept under results/",
}
LONG = r"emabank (demo|protocol|run|report|claims|status|bench|advise)\b"


def why_not(command: str) -> str | None:
    return next((why for pattern, why in NOT_HERE.items() if re.search(pattern, command)), None)


def commands_of(page: Path, *, long: bool) -> list[str]:
    """Those that can be carried out here; a page with long ones keeps its order, because one may need another."""
    shown = [" ".join(words_of(command)) for command in shown_commands(page.read_text())]  # without their comments
    found = [command for command in shown if why_not(command) is None]
    return [command for command in found if bool(re.search(LONG, command)) is long]


def carry_out(page: Path, folder: Path, *, long: bool) -> None:
    for command in commands_of(page, long=long):
        words = words_of(command)
        is_complete = "--data" not in words or DATA is not None
        if not is_complete and words[1] != "data":
            continue  # the data sets are not here: EMABANK_DATA names no folder
        for given in [words[place + 1] for place, word in enumerate(words) if word in ("-o", "--output")]:
            shutil.rmtree(folder / given, ignore_errors=True)  # the page shows several ways to one file
            (folder / given).unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "emabank.study", *(arguments_of(command) or [])],
            cwd=folder, capture_output=True, text=True, timeout=3600, check=False,
        )  # fmt: skip
        expected = 0 if is_complete else 1  # `emabank data check` says what is missing
        assert done.returncode == expected, f"{page.name}: {command}\n{done.stdout}\n{done.stderr}"
        assert len(done.stdout.strip().splitlines()) >= 1, command
        assert "Traceback" not in done.stderr, command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a reader of the pages has already: data sets, and checkpoints of a training."""
    if DATA is not None:
        (tmp_path / "data").symlink_to(Path(DATA).resolve())
    checkpoints = [f"checkpoints/{step}.safetensors" for step in range(1, 7)]
    checkpoints += ["a.pt", "b.pt", "c.pt"]
    checkpoints += [f"output/checkpoint-{step}/model.safetensors" for step in (500, 1000)]
    checkpoints += [f"lightning_logs/version_0/checkpoints/epoch={epoch}-step={10 * epoch}.ckpt" for epoch in (1, 2)]
    for seed, name in enumerate(checkpoints, 1):
        write(tmp_path / name, state(seed))
    return tmp_path


SHORT_PAGES = [page for page in PAGES if commands_of(page, long=False)]
LONG_PAGES = [page for page in PAGES if commands_of(page, long=True)]


@pytest.mark.parametrize("page", SHORT_PAGES, ids=name_of)
def test_the_short_commands_of_a_page(page: Path, folder: Path):
    carry_out(page, folder, long=False)


@pytest.mark.commands
@pytest.mark.parametrize("page", LONG_PAGES, ids=name_of)
def test_the_long_commands_of_a_page(page: Path, folder: Path):
    carry_out(page, folder, long=True)


def test_the_pages_are_those_that_show_commands():
    assert {"README.md", "docs/average.md"} <= {name_of(page) for page in SHORT_PAGES}
    assert {"docs/studies.md"} <= {name_of(page) for page in LONG_PAGES}


def test_control_a_command_that_fails_is_seen(tmp_path: Path):
    page = tmp_path / "a-page.md"
    page.write_text("```sh\nemabank decay 1.5\n```\n")
    with pytest.raises(AssertionError, match="a-page.md: emabank decay 1.5"):
        carry_out(page, tmp_path, long=False)
