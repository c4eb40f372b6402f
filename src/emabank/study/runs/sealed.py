"""JSON files that notice damage: the last entry of each is a checksum over the others. Standard library only.

A flipped bit can leave a file that is still JSON and says something else. Files of an earlier emabank have no checksum
and are read as they are.
"""

import json
import re
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

CHECKSUM = "checksum"
_KIND = re.compile(r"crc32:[0-9a-f]{8}")


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values with a checksum over all of them behind.

    >>> sealed({"epochs": 3})
    {'epochs': 3, 'checksum': 'crc32:5fdda110'}
    """
    return {**content, CHECKSUM: _checksum(content)}


def unsealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same without the checksum; `ValueError` where it does not fit.

    >>> unsealed({"epochs": 4, "checksum": "crc32:5fdda110"})
    Traceback (most recent call last):
    ...
    ValueError: its content does not match its checksum
    """
    plain = {key: value for key, value in content.items() if key != CHECKSUM}
    if CHECKSUM in content:
        intact = content[CHECKSUM] == _checksum(plain)
    else:
        # The name of the checksum may be what was damaged; what looks like one is no value of ours.
        intact = not any(isinstance(value, str) and _KIND.fullmatch(value) for value in plain.values())
    if not intact:
        raise ValueError("its content does not match its checksum")
    return plain


def read_sealed(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds, without its checksum; `ValueError` in a few words where it is damaged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "done.json")
    ...     _ = path.write_text(json.dumps(sealed({"epochs": 3})))
    ...     read_sealed(path)
    {'epochs': 3}
    """
    content = read_any(path)
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    return unsealed(cast("dict[str, Any]", content))


def read_any(path: Path) -> Any:
    """What a JSON file holds; `ValueError` in a few words where it is none, a missing file says so itself.

    >>> read_any(Path(__file__))
    Traceback (most recent call last):
    ...
    ValueError: it is not JSON
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is no regular file")  # reading a pipe would never end
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not JSON") from error


def _checksum(content: Mapping[str, Any]) -> str:
    """Over the values and not over the text, as JSON gives them back: what means the same counts as the same."""
    try:
        text = json.dumps(json.loads(json.dumps(content)), sort_keys=True)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return f"crc32:{zlib.crc32(text.encode()):08x}"
