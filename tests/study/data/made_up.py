"""Small files in the published formats, made without emabank."""

import io
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np


def python2_pickle(value: Any) -> bytes:
    """A pickle as Python 2 with an old numpy wrote it, which Python 3 can no longer write."""
    return b"\x80\x02" + _pickled(value, iter(range(10_000_000))) + b"."


def _pickled(value: Any, memo: Any) -> bytes:
    def put() -> bytes:
        number = next(memo)
        return b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)

    match value:
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value)
        case bytes():
            head = b"U" + bytes([len(value)]) if len(value) < 256 else b"T" + struct.pack("<I", len(value))
            return head + value + put()
        case str():
            return _pickled(value.encode(), memo)
        case list():
            return b"]" + put() + b"(" + b"".join(_pickled(item, memo) for item in value) + b"e"
        case tuple():
            return b"(" + b"".join(_pickled(item, memo) for item in value) + b"t" + put()
        case dict():
            items = b"".join(_pickled(part, memo) for item in value.items() for part in item)
            return b"}" + put() + b"(" + items + b"u"
        case np.ndarray():
            kind = value.dtype.str
            array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R" + put()
            dtype = b"cnumpy\ndtype\n" + _pickled(kind[1:], memo) + b"K\x00K\x01\x87R" + put()
            dtype += _pickled((3, kind[0], None, None, None, -1, -1, 0), memo) + b"b"
            state = b"(K\x01" + _pickled(value.shape, memo) + dtype + b"\x89" + _pickled(value.tobytes(), memo) + b"t"
            return array + state + b"b"
    raise TypeError(type(value))


def cifar_batch(seed: int, count: int, classes: int, key: str = "labels", **changes: Any) -> dict[str, Any]:
    """A batch as published: one row per image, channel by channel."""
    random = np.random.default_rng(seed)
    return {
        "batch_label": f"batch {seed}",
        key: random.integers(0, classes, count).tolist(),
        "data": random.integers(0, 256, (count, 3072), dtype=np.uint8),
        "filenames": [f"image_{index}.png" for index in range(count)],
        **changes,
    }


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def tar_gz(files: dict[str, bytes], *special: tarfile.TarInfo) -> bytes:
    """An archive of these files; members without content (links, devices) come first."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for member in special:
            archive.addfile(member)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def tar_member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member
