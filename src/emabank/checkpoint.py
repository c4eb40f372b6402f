"""Files: a whole bank, one exported average, nested states; written atomically, read without executing anything.

safetensors is imported only by the functions that need it.
"""

import ctypes
import errno
import json
import os
import re
import secrets
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor

if TYPE_CHECKING:
    from emabank.bank import EMABank


FORMAT = "emabank"
VERSION = 1
_TENSOR = "__tensor__"  # stands for a tensor in the text that a checksum is taken of
_MIN_SIZE_LIMIT = 1 << 26  # bytes that the tensors of a small file may take

# States: nested dicts, lists, numbers, strings, None and tensors -----------------------------------------------------


def write_state(path: str | os.PathLike[str], state: Mapping[str, Any], *, kind: str) -> int:
    """Write a nested state atomically in torch's format, with a version, its kind and a checksum over every value.

    Returns the checksum.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_state(f"{folder}/file.pt", {"steps": 3, "averages": [torch.ones(2)]}, kind="example")
    ...     read_state(f"{folder}/file.pt", kind="example")
    {'steps': 3, 'averages': [tensor([1., 1.])]}
    """
    path = Path(path)
    if is_safetensors(path):
        raise ValueError(
            f"{path} must have a suffix such as '.pt': a whole state is written in torch's format. "
            "export(bank, name, path) writes one average as safetensors."
        )
    text, tensors = _take_apart(state)
    checksum = _checksum(text, tensors)
    # Rebuilt from the text, so that equal states make equal files: pickle writes a string that it has seen only once.
    rebuilt = json.loads(text, object_hook=partial(_put_back, tensors))
    content = {"format": FORMAT, "version": VERSION, "kind": kind, "checksum": checksum, "state": rebuilt}
    write_atomically(path, lambda temporary: write_torch(temporary, content))
    return checksum


def read_state(path: str | os.PathLike[str], *, kind: str, checksum: int | None = None) -> dict[str, Any]:
    """Read what `write_state` wrote, onto the CPU; `ValueError` if the file is damaged or of another kind.

    With a `checksum` it must be the very state that `write_state` returned it for.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_state(f"{folder}/file.pt", {"steps": 3}, kind="example")
    ...     read_state(f"{folder}/file.pt", kind="bank")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    ValueError: file.pt holds an emabank example, not a bank.
    """
    path = Path(path)
    with open(path, "rb") as file:  # a missing or unreadable file raises its own OSError
        start = file.read(4)
    try:
        content = _read_torch(path, start)
    except Exception as error:  # whatever a reader raises on foreign bytes, OSError included
        raise ValueError(
            f"{path} is damaged, cut short or not a file of emabank.checkpoint; use another copy of it."
        ) from error
    state = _checked(path, content, kind)
    if checksum is not None and content["checksum"] != checksum:
        raise ValueError(f"{path} is intact but was overwritten by another writer; use a separate folder per tracker.")
    return state


def _checked(path: Path, content: Mapping[str, Any], kind: str) -> dict[str, Any]:
    if content.get("format") != FORMAT or not isinstance(content.get("version"), int):
        raise ValueError(
            f"{path} was not written by emabank.checkpoint; if it is bank.state_dict() in a file of your own, give "
            f"it to bank.load_state_dict."
        )
    if content["version"] > VERSION:
        raise ValueError(
            f"{path} has format version {content['version']} and this emabank reads up to {VERSION}; upgrade emabank."
        )
    if content.get("kind") != kind:
        raise ValueError(f"{path} holds an emabank {content.get('kind')}, not a {kind}.")
    state = cast("dict[str, Any]", content.get("state"))
    try:
        intact = type(state) is dict and _nbytes(state) <= size_limit(path)
        intact = intact and _checksum(*_take_apart(state)) == content["checksum"]
    except Exception:  # values that write_state would not have written
        intact = False
    if not intact:
        raise ValueError(f"{path} is damaged: its content does not match its checksum; use another copy of it.")
    return state


def size_limit(path: Path) -> int:
    """The most bytes that the tensors of a file may take; a view of one number could claim any size.

    >>> size_limit(Path(__file__)) >= 2**26
    True
    """
    return max(16 * path.stat().st_size, _MIN_SIZE_LIMIT)


def _nbytes(value: Any) -> int:
    """The bytes of all tensors of a state, each by itself."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(_nbytes, cast("dict[str, Any]", value).values()))
    return sum(map(_nbytes, cast("list[Any]", value))) if isinstance(value, list | tuple) else 0


def _take_apart(state: Mapping[str, Any]) -> tuple[str, list[Tensor]]:
    """A state as JSON text with the number of a tensor in the place of each, and the tensors."""
    tensors: list[Tensor] = []

    def plain(value: Any, where: str) -> Any:
        if isinstance(value, Tensor):
            tensors.append(plain_tensor(value, where))
            return {_TENSOR: len(tensors) - 1}
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            for key, _ in items:
                if not isinstance(key, str) or key == _TENSOR:
                    raise ValueError(
                        f"Keys in {where or 'the state'} must be strings other than {_TENSOR!r}; got {key!r}."
                    )
            return {key: plain(item, f"{where}/{key}") for key, item in items}
        if isinstance(value, list | tuple):
            return [plain(item, f"{where}/{index}") for index, item in enumerate(cast("list[Any]", value))]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise ValueError(
            f"A {type(value).__name__} at {where} cannot be saved safely; only plain values and tensors can."
        )

    return json.dumps(plain(state, "")), tensors


def _put_back(tensors: Sequence[Tensor], item: dict[str, Any]) -> Any:
    return tensors[item[_TENSOR]] if _TENSOR in item else item


def _checksum(text: str, tensors: Iterable[Tensor]) -> int:
    """CRC-32 over every value: torch does not notice a flipped bit in a tensor."""
    total = zlib.crc32(text.encode())
    for tensor in tensors:
        tensor = tensor.contiguous()
        total = zlib.crc32(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        if tensor.numel():
            # Through ctypes, because torch works without numpy and .numpy() has no bfloat16.
            total = zlib.crc32((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()), total)
    return total


def plain_tensor(tensor: Tensor, place: str) -> Tensor:
    """The tensor on the CPU, detached, and not a window into a larger storage, all of which torch.save would write.

    >>> plain_tensor(torch.zeros(1000)[:3], "bias").untyped_storage().nbytes()
    12
    """
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        raise ValueError(
            f"{place!r} is a {type(tensor).__name__} of layout {tensor.layout}; only plain dense tensors are saved, "
            f"so gather or convert it first."
        )
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor.untyped_storage().nbytes() < tensor.nbytes:
        return tensor.contiguous()  # expanded: a file that claims more than it has is refused
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


# The two formats -----------------------------------------------------------------------------------------------------


def is_safetensors(path: Path) -> bool:
    """Whether the suffix asks for safetensors.

    >>> is_safetensors(Path("bank.safetensors")), is_safetensors(Path("bank.pt"))
    (True, False)
    """
    return path.suffix.lower() == ".safetensors"


def _safetensors() -> Any:
    try:
        import_module("safetensors.torch")
        return import_module("safetensors")
    except ImportError as error:
        raise ImportError(
            "A '.safetensors' file needs the package safetensors: pip install safetensors, or use a '.pt' file."
        ) from error


def write_torch(path: Path, content: Mapping[str, Any]) -> None:
    """Write torch's own format to this path (not atomically); a failed write is an `OSError`.

    >>> write_torch(Path("/no/such/folder/file.pt"), {})  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory
    """
    try:
        with open(path, "wb") as file:
            torch.save(content, file)
    except RuntimeError as error:
        # torch's writer reports a failed write as an inconsistency of its own; the reason is the exception before.
        raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


def _read_torch(path: Path, start: bytes) -> Mapping[str, Any]:
    if start != b"PK\x03\x04":
        raise ValueError("Not a zip archive")  # the older format of torch.save is a bare pickle: never ours
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    # torch.save compresses nothing, so that what a file holds is no larger than the file, if it tells the truth.
    if any(each.compress_type != zipfile.ZIP_STORED for each in members) or sum(m.file_size for m in members) > size:
        raise ValueError("Holds more than it has bytes")
    content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=False)
    if not isinstance(content, dict):
        raise ValueError("Not a dict")
    return cast("dict[str, Any]", content)


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write safetensors to this path (not atomically); a failed write is an `OSError`, as it is not by itself.

    >>> write_safetensors(Path("/no/such/folder/file.safetensors"), {}, {})  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory
    """
    safetensors = _safetensors()
    apart: dict[str, Tensor] = {}
    storages: set[int] = set()
    for key, tensor in tensors.items():
        tensor = tensor.contiguous()
        storage = tensor.untyped_storage().data_ptr()
        apart[key] = tensor.clone() if storage in storages else tensor  # safetensors refuses shared memory
        storages.add(storage)
    try:
        safetensors.torch.save_file(apart, path, metadata)
    except KeyError as error:
        raise ValueError(f"The safetensors format cannot hold {error.args[0]}; use a '.pt' file.") from error
    except safetensors.SafetensorError as error:
        number = re.search(r"(?:os error|code:) (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
    _sort_metadata(path)


def _sort_metadata(path: Path) -> None:
    """Put the keys of the metadata in order: safetensors writes them as they fall, and equal files should be equal."""
    with open(path, "r+b") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        metadata = header.pop("__metadata__", None)
        if metadata:
            ordered = {"__metadata__": dict(sorted(metadata.items())), **header}
            text = json.dumps(ordered, separators=(",", ":"), ensure_ascii=False).encode()
            if len(text) <= size:  # the rest is spaces, as the format has it
                file.seek(8)
                file.write(text.ljust(size))


# Atomic writing ------------------------------------------------------------------------------------------------------


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Write a file so that a crash, a full disk or Ctrl-C leaves the old one or the new one whole, never a part.

    `write` is given a temporary path in the same folder and fills it. Missing folders are created; a symbolic link
    stays one, and the file that it points to is replaced.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(f"{folder}/new/notes.txt", lambda temporary: temporary.write_text("whole"))
    ...     Path(folder, "new", "notes.txt").read_text()
    'whole'
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        # Replacing would work, for root even on /dev/null.
        raise OSError(errno.EINVAL, "Only a regular file can be replaced", str(target))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"The folder for {target.name} cannot be made: {error.strerror}"
        raise OSError(error.errno, reason, str(target.parent)) from error
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode
        write(temporary)
        temporary.chmod(mode)  # safetensors puts a file of its own there, readable by its owner alone
        sync(temporary, os.O_RDWR)
        os.replace(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            reason = f"Could not be written ({error.strerror or error}); what was there before is unchanged"
            raise OSError(error.errno or errno.EIO, reason, str(target)) from error
        raise
    if os.name == "posix":
        with suppress(OSError):  # the file is in place; some network file systems refuse to sync a folder
            sync(target.parent, os.O_RDONLY)


def sync(path: Path, flags: int) -> None:
    """Wait until a file or folder is on the disk; it is opened with these flags, which differ between the two.

    >>> sync(Path(__file__).parent, os.O_RDONLY)
    """
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


__all__ = ["export", "load", "read_state", "save", "write_atomically", "write_safetensors", "write_state"]

# A whole bank --------------------------------------------------------------------------------------------------------


def save(bank: "EMABank", path: str | os.PathLike[str]) -> None:
    """Write the whole state of a bank to one file, atomically, in torch's format.

    `torch.load(path, weights_only=True)` reads it, too.

    >>> import tempfile
    >>> from emabank import EMABank
    >>> bank = EMABank(torch.nn.Linear(2, 2), [0.9], every=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = bank.update()
    ...     save(bank, f"{folder}/bank.pt")
    ...     _ = bank.update()
    ...     load(bank, f"{folder}/bank.pt")
    >>> bank.num_steps
    1
    """
    write_state(path, bank.state_dict(), kind="bank")


def load(bank: "EMABank", path: str | os.PathLike[str]) -> None:
    """Read what `save` wrote into a bank with the same model and averages.

    A file that is damaged, cut short, foreign or too new raises `ValueError` and leaves the bank as it was. Nothing
    in the file is executed, whoever wrote it.

    >>> from emabank import EMABank
    >>> load(EMABank(torch.nn.Linear(2, 2), [0.9]), __file__)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    ValueError: checkpoint.py is damaged, cut short or not a file of emabank.checkpoint; use another copy of it.
    """
    bank.load_state_dict(read_state(path, kind="bank"))


# One average ---------------------------------------------------------------------------------------------------------


def export(
    bank: "EMABank",
    name: str | float,
    path: str | os.PathLike[str],
    *,
    batchnorm: Literal["averaged", "recomputed"] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write one average as a plain state dict, which the model loads without emabank.

    The tensors are in the stored precision, or with `dtype` all floating ones in that; `load_state_dict` casts to
    the model's own. Tied tensors have all their keys. A `.safetensors` suffix chooses that format.

    >>> import tempfile
    >>> from emabank import EMABank
    >>> model = torch.nn.Linear(2, 2)
    >>> bank = EMABank(model, [0.9])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(bank, 0.9, f"{folder}/average.pt")
    ...     model.load_state_dict(torch.load(f"{folder}/average.pt", weights_only=True))
    <All keys matched successfully>
    """
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"dtype={dtype} is not a floating-point type; give one such as torch.bfloat16, or None.")
    path = Path(path)
    weights = bank.weights(name, batchnorm=batchnorm)
    made: dict[int, Tensor] = {}  # by identity, so that tied tensors stay one tensor
    tensors: dict[str, Tensor] = {}
    others: dict[str, object] = {}
    for key, value in weights.items():
        if isinstance(value, Tensor):
            if id(value) not in made:
                made[id(value)] = _cast(plain_tensor(value, key), key, dtype)
            tensors[key] = made[id(value)]
        else:
            others[key] = value
    if is_safetensors(path):
        if others:
            raise ValueError(
                f"The safetensors format holds tensors only, and {', '.join(others)} of the model's state is none; "
                f"export to a '.pt' file instead of {path}."
            )
        write_atomically(path, lambda temporary: write_safetensors(temporary, tensors, {"format": "pt"}))
    else:
        _refuse_unsafe(others)
        plain = {key: tensors[key] if key in tensors else others[key] for key in weights}
        write_atomically(path, lambda temporary: write_torch(temporary, plain))


def _cast(tensor: Tensor, key: str, dtype: torch.dtype | None) -> Tensor:
    if dtype is None or not tensor.is_floating_point():
        return tensor
    cast_to = tensor.to(dtype)
    if not torch.equal(cast_to.to(tensor.dtype).isfinite(), tensor.isfinite()):
        raise ValueError(
            f"{key!r} holds values that {dtype} cannot represent; export with a wider dtype, such as torch.bfloat16."
        )
    return cast_to


def _refuse_unsafe(others: Mapping[str, object]) -> None:
    for key, value in others.items():
        buffer = BytesIO()
        try:
            torch.save(value, buffer)
            buffer.seek(0)
            torch.load(buffer, weights_only=True)
        except Exception as error:
            raise ValueError(
                f"{key!r} of the model's state is a {type(value).__name__}, which torch.load(weights_only=True) "
                f"refuses; return plain numbers, strings, lists, dicts or tensors from get_extra_state."
            ) from error
