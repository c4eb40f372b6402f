"""A checkpoint written like one that is there: the same files and names, other values; whole, or not at all.

A folder is made under another name beside the place it is meant for, and takes its name at the end. May import sources
and files of the library.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from emabank.averaging.safetensors_file import SUFFIX
from emabank.averaging.sources import TRAINING, Checkpoint, weights_in
from emabank.averaging.torch_file import SUFFIXES
from emabank.checkpoint import sync, write_atomically

_WEIGHTS = (SUFFIX, *SUFFIXES, ".h5", ".msgpack", ".onnx", ".gguf", ".ot", ".npz", ".index.json")
_LARGEST = 64 * 2**20  # bytes of what is copied beside the weights; the largest tokenizers have about half


def refuse_target(out: Path, like: Checkpoint, inputs: Sequence[Path], *, replace: bool) -> None:
    """Raise where an average like `like` cannot go to `out`, or should not."""
    real = out.resolve()
    for path in inputs:
        given = path.resolve()
        if real == given or real in given.parents or (path.is_dir() and given in real.parents):
            raise ValueError(f"The average cannot be written to {out}: {path} is there, which it is made of.")
    kinds = (SUFFIX,) if like.path.suffix.lower() == SUFFIX else SUFFIXES
    if like.is_folder and out.suffix.lower() in (SUFFIX, *SUFFIXES):
        raise ValueError(f"The average of checkpoints that are folders is a folder; {out.name} is the name of a file.")
    if not like.is_folder and out.suffix.lower() not in kinds:
        raise ValueError(f"The average is a file like {like.path.name}; {out.name} has to end in {' or '.join(kinds)}.")
    if not out.exists() and not out.is_symlink():
        return
    if not replace:
        raise FileExistsError(
            errno.EEXIST,
            "There is something already; give another name, or have it replaced (--force, replace_out=True)",
            str(out),
        )
    if out.is_dir() != like.is_folder:
        kind = "folder" if out.is_dir() else "file"
        raise ValueError(f"{out} is a {kind} and the average is none; give another name.")
    if out.is_dir() and (weights_in(out) is None or any(each.is_dir() for each in out.iterdir())):
        raise ValueError(f"{out} holds other things than one checkpoint, so it is not replaced; give another name.")


def write_checkpoint(
    like: Checkpoint, out: Path, make: Callable[[str], Iterator[Tensor]], same_as: Mapping[str, str]
) -> None:
    """Write what `make` gives for each tensor in the layout of `like`, in the place of what is there."""
    if not like.is_folder:
        (file,) = like.files.values()
        write_atomically(out, lambda temporary: file.write(temporary, make, same_as))
        return
    out = out.resolve()
    draft = out.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        draft.mkdir(parents=True)
        for name, file in like.files.items():
            file.write(draft / name, make, same_as)
        for other in beside(like):
            shutil.copyfile(other, draft / other.name)
        for each in draft.iterdir():
            sync(each, os.O_RDWR)
        _take_place(draft, out)
    except OSError as error:
        reason = f"Could not be written ({error.strerror or error}); what was there before is unchanged"
        raise OSError(error.errno or errno.EIO, reason, str(out)) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    if os.name == "posix":
        with suppress(OSError):  # it is in place; some network file systems refuse to sync a folder
            sync(out.parent, os.O_RDONLY)


def beside(like: Checkpoint) -> list[Path]:
    """The files that belong to a model beside its weights: configuration, tokenizer, index; nothing of its training."""
    return [
        each
        for each in sorted(like.folder.iterdir())
        if each.name == like.index
        or (
            each.is_file()
            and not each.name.endswith(_WEIGHTS)
            and not each.name.startswith((".", *TRAINING))
            and each.stat().st_size <= _LARGEST
        )
    ]


def _take_place(draft: Path, out: Path) -> None:
    """Give a folder its name, also where there is one of that name; at every moment one of the two is whole."""
    if not out.exists():
        os.rename(draft, out)
        return
    old = out.with_name(f".{secrets.token_hex(8)}.old")
    os.rename(out, old)
    try:
        os.rename(draft, out)
    except BaseException:
        if not out.exists():  # an interrupt may come when it has its name already
            os.rename(old, out)
        raise
    shutil.rmtree(old, ignore_errors=True)
