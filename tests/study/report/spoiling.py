"""Read, write and damage the files of a run without the readers under test."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "garbage": lambda path: path.write_bytes(b"\xff\x00garbage"),
    "list": lambda path: path.write_text("[]\n"),
    "table": lambda path: path.write_text("{}\n"),
    "number": lambda path: path.write_text("3\n"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "folder": lambda path: (path.unlink(), path.mkdir()),
}


def content(*parts: str | Path) -> Any:
    """A JSON file without its checksum, as an earlier emabank wrote it."""
    found = json.loads(Path(*parts).read_text(encoding="utf-8"))
    return {key: value for key, value in found.items() if key != "checksum"} if isinstance(found, dict) else found


def put(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def forget_sizes(folder: Path, *names: str) -> None:
    """Let a run accept these files at any size."""
    done = content(folder, "done.json")
    files = {name: listed for name, listed in done["files"].items() if name not in names}
    put(folder / "done.json", {**done, "files": files})
