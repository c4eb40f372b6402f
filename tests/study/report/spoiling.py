"""Files of a folder of runs, read without our own readers, and spoilt in every way that files can be."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

SPOILT: dict[str, Callable[[Path], object]] = {
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
    """What a JSON file holds, but for its checksum: written back, it is as an earlier emabank would have written it."""
    found = json.loads(Path(*parts).read_text(encoding="utf-8"))
    return {key: value for key, value in found.items() if key != "checksum"} if isinstance(found, dict) else found


def put(path: Path, value: Any) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(value), encoding="utf-8")


def forget_sizes(folder: Path, *names: str) -> None:
    """Let a run take files of any size for those that it left."""
    done = content(folder, "done.json")
    files = {name: listed for name, listed in done["files"].items() if name not in names}
    put(folder / "done.json", {**done, "files": files})
