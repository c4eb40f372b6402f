"""Hostile files for the torture tests, which try to run code, leave their folder, or fill the memory.

Code that runs would write a mark: a file that must not exist afterwards.
"""

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from emabank.checkpoint import write_state

GIGABYTE = 1 << 30


class RunsCommand:
    """Runs a command when unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.mark}'",)


class Evaluates(RunsCommand):
    """Evaluates an expression when unpickled."""

    def __reduce__(self) -> Any:
        return eval, (f"open({str(self.mark)!r}, 'w').close()",)


def corpus(mark: Path, folder: Path) -> dict[str, bytes]:
    """The contents of all files by name; `folder` is for temporary files."""
    return {
        **_pickles(mark, folder),
        **_archives(mark, folder),
        **_arrays(mark),
        **_texts(mark),
        **_safetensors(),
        **_bombs(folder),
    }


def _saved(content: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def _pickles(mark: Path, folder: Path) -> dict[str, bytes]:
    found = {f"pickle protocol {number}": pickle.dumps(RunsCommand(mark), number) for number in (0, 1, 2, 4, 5)}
    found["pickle of an expression"] = pickle.dumps({"data": Evaluates(mark), "labels": []}, protocol=2)
    found["pickle by name"] = b"cposix\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR."
    found["pickle by instance"] = b"(S'touch " + str(mark).encode() + b"'\nios\nsystem\n."
    state = {"format": "emabank", "version": 1, "kind": "bank", "checksum": 0, "state": RunsCommand(mark)}
    found["torch file"] = _saved(state)
    found["old torch file"] = _saved(state, _use_new_zipfile_serialization=False)
    found["labels in a torch file"] = _saved({"clean_label": RunsCommand(mark), "worse_label": Evaluates(mark)})
    write_state(folder / "good.pt", {"weights": torch.ones(3)}, kind="bank")
    swapped = io.BytesIO()
    with zipfile.ZipFile(folder / "good.pt") as good, zipfile.ZipFile(swapped, "w") as archive:
        for name in good.namelist():
            archive.writestr(name, pickle.dumps(RunsCommand(mark)) if name.endswith(".pkl") else good.read(name))
    found["checkpoint with another pickle in it"] = swapped.getvalue()
    return found


def _archives(mark: Path, folder: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    names = {"above": "../mark", "absolute": str(mark), "deep": "a/b/../../../mark", "backslash": "..\\mark"}
    for kind, name in names.items():
        tarred, zipped = io.BytesIO(), io.BytesIO()
        with tarfile.open(fileobj=tarred, mode="w:gz") as archive:
            member = tarfile.TarInfo(name)
            member.size = 4
            archive.addfile(member, io.BytesIO(b"mark"))
        with zipfile.ZipFile(zipped, "w") as archive:
            archive.writestr(name, "mark")
        found |= {f"tar with a name {kind}": tarred.getvalue(), f"zip with a name {kind}": zipped.getvalue()}
    tarred = io.BytesIO()
    with tarfile.open(fileobj=tarred, mode="w:gz") as archive:
        link = tarfile.TarInfo("here")
        link.type, link.linkname = tarfile.SYMTYPE, str(mark.parent)
        archive.addfile(link)
        member = tarfile.TarInfo("here/mark")
        member.size = 4
        archive.addfile(member, io.BytesIO(b"mark"))
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        link = zipfile.ZipInfo("here")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, str(mark.parent))
        archive.writestr("here/mark", "mark")
    return {**found, "tar with a link": tarred.getvalue(), "zip with a link": zipped.getvalue()}


def _arrays(mark: Path) -> dict[str, bytes]:
    objects, many, lying, code = (io.BytesIO() for _ in range(4))
    array = np.array([RunsCommand(mark)], dtype=object)
    np.save(objects, array, allow_pickle=True)
    np.savez(many, logits_val=array, labels_val=array)
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"
    lying.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"\0" * 16)
    expression = f"{{'descr': __import__('os').system('touch {mark}'), 'fortran_order': 0, 'shape': (1,)}}".encode()
    code.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(expression)) + expression)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in ("logits_val.npy", "labels_val.npy"):
            archive.writestr(name, lying.getvalue())
    return {
        "array of objects": objects.getvalue(),
        "arrays of objects": many.getvalue(),
        "array that lies about its size": lying.getvalue(),
        "arrays that lie about their sizes": packed.getvalue(),
        "array with code for a header": code.getvalue(),
    }


def _texts(mark: Path) -> dict[str, bytes]:
    return {
        "nested list": b"[" * 100_000,
        "nested list, closed": b"[" * 100_000 + b"]" * 100_000 + b"\n",
        "nested table": b'{"config":' * 50_000 + b"1" + b"}" * 50_000 + b"\n",
        "number of many digits": b"1" * 1_000_000 + b"\n",
        "toml nested": b"a = " + b"[" * 50_000,
        "half a character": b'{"format": "\\ud800"}\n',
        "wrong encoding": b'{"format": "\xff\xfe"}\n',
        "not finite": b'{"format": NaN, "files": Infinity}\n',
        "yaml": f"!!python/object/apply:os.system ['touch {mark}']\n".encode(),
        "script": f"#!/bin/sh\ntouch '{mark}'\n".encode(),
        "python": f"__import__('os').system('touch {mark}')\n".encode(),
        "letters": b"hello\n",
        "bytes": bytes(range(256)) * 40,
        "null": b"\0" * 4096,
        "index of files elsewhere": b'{"weight_map": {"a": "../../mark.safetensors", "b": "/etc/passwd"}}\n',
        "cut zip": b"PK\x03\x04",
        "cut pickle": b"\x80\x04",
        "postscript": f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(%pipe%touch {mark}) (w) file\n".encode(),
    }


def _safetensors() -> dict[str, bytes]:
    def file(header: Any, body: bytes = b"\0" * 16, size: int | None = None) -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text) if size is None else size) + text + body

    def entry(shape: list[int], offsets: list[int], dtype: str = "F32") -> dict[str, Any]:
        return {"dtype": dtype, "shape": shape, "data_offsets": offsets}

    return {
        "safetensors: endless header": file({}, size=(1 << 63) - 1),
        "safetensors: header of 99 MB": file({}, size=99_000_000),
        "safetensors: past the end": file({"a": entry([1000], [0, 4000])}),
        "safetensors: overlapping": file({"a": entry([4], [0, 16]), "b": entry([4], [0, 16])}),
        "safetensors: backwards": file({"a": entry([4], [16, 0])}),
        "safetensors: shape too large": file({"a": entry([1 << 62, 4], [0, 16])}),
        "safetensors: negative shape": file({"a": entry([-4], [0, 16])}),
        "safetensors: other type": file({"a": entry([4], [0, 16], "PICKLE")}),
        "safetensors: nested header": file(b"[" * 50_000),
        "safetensors: notes that are no notes": file(
            {"__metadata__": {"emabank": "[" * 50_000, "state": "["}, "a": entry([4], [0, 16])}
        ),
    }


def _bombs(folder: Path) -> dict[str, bytes]:
    """Small files that would unpack to gigabytes."""
    write_state(folder / "good.pt", {"weights": torch.ones(3)}, kind="bank")
    grown, arrays = io.BytesIO(), io.BytesIO()
    zeros = bytes(1 << 20)
    with (
        zipfile.ZipFile(folder / "good.pt") as good,
        zipfile.ZipFile(grown, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        for name in good.namelist():
            if "data/" in name:
                with archive.open(name, "w") as member:
                    for _ in range(100):
                        member.write(zeros)
            else:
                archive.writestr(name, good.read(name))
    with zipfile.ZipFile(arrays, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("logits_val.npy", "labels_val.npy"):
            with archive.open(name, "w") as member:
                header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (104857600,), }"
                member.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
                for _ in range(100):
                    member.write(zeros)
    large = torch.zeros(1).expand(3 * GIGABYTE)  # four bytes in the file
    return {
        "bomb in a torch file": grown.getvalue(),
        "bomb in an array file": arrays.getvalue(),
        "bomb of gzip": gzip.compress(bytes(100 << 20), compresslevel=1),
        "bomb of one number, nothing else": _saved({"weight": large}),
        "bomb of one number": _saved(
            {"format": "emabank", "version": 1, "kind": "bank", "checksum": 0, "state": {"weights": large}}
        ),
    }
