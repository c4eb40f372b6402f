"""Files: a whole bank, one exported average, nested states. Written atomically, and read without executing anything."""

import ctypes
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor

from emabank.atomic import write_atomically

if TYPE_CHECKING:
    from emabank.bank import EMABank

__all__ = ["NewerVersionError", "export", "load", "read_state", "save", "write_safetensors", "write_state"]

FORMAT = "emabank"
VERSION = 1


class NewerVersionError(ValueError):
    """A newer emabank wrote the file; upgrade to read it."""


# A bank, and one of its averages --------------------------------------------------------------------------------------


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

    A file that is damaged, truncated, foreign or too new raises a `ValueError` and leaves the bank as it was. Nothing
    in the file is executed, whoever wrote it.

    >>> from emabank import EMABank
    >>> load(EMABank(torch.nn.Linear(2, 2), [0.9]), __file__)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    ValueError: checkpoint.py is damaged, truncated or not a file of emabank.checkpoint; use another copy of it.
    """
    bank.load_state_dict(read_state(path, kind="bank"))


def export(
    bank: "EMABank",
    name: str | float,
    path: str | os.PathLike[str],
    *,
    batchnorm: Literal["averaged", "recomputed"] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write one average as a plain state dict, which the model loads without emabank.

    The suffix `.safetensors` chooses that format. Tied tensors have all their keys.

    Args:
        bank: the bank.
        name: the name of the average, or the number of its decay.
        path: the file.
        batchnorm: which batch-norm statistics, as for `bank.weights`.
        dtype: the dtype of all floating tensors; None keeps the stored precision. `load_state_dict` casts to that of
            the model.

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
        raise ValueError(f"dtype must be a floating-point type such as torch.bfloat16, or None; got {dtype}.")
    path = Path(path)
    content: dict[str, Any] = {}
    copies: dict[int, Tensor] = {}  # by identity, so that tied tensors stay one tensor
    for key, value in bank.weights(name, batchnorm=batchnorm).items():
        if isinstance(value, Tensor):
            if id(value) not in copies:
                copies[id(value)] = _cast(plain_tensor(value, key), key, dtype)
            content[key] = copies[id(value)]
        else:
            content[key] = value
    others = {key: value for key, value in content.items() if not isinstance(value, Tensor)}
    if not _is_safetensors(path):
        _check_loads_safely(others)
        write_atomically(path, lambda temporary: write_torch(temporary, content))
    elif not others:
        write_atomically(path, lambda temporary: write_safetensors(temporary, content, {"format": "pt"}))
    else:
        raise ValueError(
            f"The safetensors format holds only tensors, but {', '.join(others)} in the model's state is none: export "
            f"to a '.pt' file instead of {path}."
        )


def _cast(tensor: Tensor, key: str, dtype: torch.dtype | None) -> Tensor:
    if dtype is None or not tensor.is_floating_point():
        return tensor
    cast_to = tensor.to(dtype)
    if not torch.equal(cast_to.to(tensor.dtype).isfinite(), tensor.isfinite()):
        raise ValueError(
            f"{key!r} holds values that {dtype} cannot represent: export with a wider dtype, such as torch.bfloat16."
        )
    return cast_to


def _check_loads_safely(values: Mapping[str, object]) -> None:
    for key, value in values.items():
        buffer = BytesIO()
        try:
            torch.save(value, buffer)
            buffer.seek(0)
            torch.load(buffer, weights_only=True)
        except Exception as error:
            raise ValueError(
                f"{key!r} of the model's state is a {type(value).__name__}, which torch.load(weights_only=True) "
                "refuses: return plain numbers, strings, lists, dicts or tensors from get_extra_state."
            ) from error


# States: nested dicts, lists, numbers, strings, None and tensors ------------------------------------------------------


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
    if _is_safetensors(path):
        raise ValueError(
            f"path must have a suffix such as '.pt', because a whole state is written in torch's format; got {path}. "
            "export(bank, name, path) writes one average as safetensors."
        )
    text, tensors = _split_tensors(state)
    checksum = _checksum(text, tensors)

    def restore_tensor(item: dict[str, Any]) -> Any:
        return tensors[item[_TENSOR]] if _TENSOR in item else item

    # Rebuilt from the text, so that equal states make equal files: pickle writes a string that it has seen only once.
    plain = json.loads(text, object_hook=restore_tensor)
    content = {"format": FORMAT, "version": VERSION, "kind": kind, "checksum": checksum, "state": plain}
    write_atomically(path, lambda temporary: write_torch(temporary, content))
    return checksum


def read_state(path: str | os.PathLike[str], *, kind: str, checksum: int | None = None) -> dict[str, Any]:
    """Read what `write_state` wrote, onto the CPU; a `ValueError` if the file is damaged or of another kind.

    With a `checksum` it must be the state that `write_state` returned it for.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_state(f"{folder}/file.pt", {"steps": 3}, kind="example")
    ...     read_state(f"{folder}/file.pt", kind="bank")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    ValueError: file.pt holds an emabank example, not a bank.
    """
    path = Path(path)
    with open(path, "rb") as file:  # a missing or unreadable file raises its own OSError
        is_zip = file.read(4) == b"PK\x03\x04"
    try:
        content = _read_torch(path) if is_zip else None  # the older format of torch.save is a bare pickle: never ours
    except Exception:  # a reader may raise anything on foreign bytes
        content = None
    if content is None:
        raise ValueError(f"{path} is damaged, truncated or not a file of emabank.checkpoint; use another copy of it.")
    if content.get("format") != FORMAT or not isinstance(content.get("version"), int):
        raise ValueError(
            f"{path} was not written by emabank.checkpoint. If it is bank.state_dict() in a file of your own, pass it "
            "to bank.load_state_dict."
        )
    if content["version"] > VERSION:
        raise NewerVersionError(
            f"{path} has format version {content['version']}, newer than {VERSION}: upgrade emabank."
        )
    if content.get("kind") != kind:
        raise ValueError(f"{path} holds an emabank {content.get('kind')}, not a {kind}.")
    state = content.get("state")
    try:
        is_intact = type(state) is dict and _checksum(*_split_tensors(state, is_read=True)) == content["checksum"]
    except Exception:  # values that write_state would not have written
        is_intact = False
    if not is_intact:
        raise ValueError(f"{path} is damaged: its content does not match its checksum; use another copy of it.")
    if checksum is not None and content["checksum"] != checksum:
        raise ValueError(f"{path} is intact but was overwritten by another writer: use a separate folder per tracker.")
    return cast("dict[str, Any]", state)


_TENSOR = "__tensor__"  # the key of a tensor in the text


def _split_tensors(state: Mapping[str, Any], *, is_read: bool = False) -> tuple[str, list[Tensor]]:
    """A state as JSON text, with numbers in place of tensors, and the tensors."""
    tensors: list[Tensor] = []

    def plain(value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            if is_read and value.untyped_storage().nbytes() != value.nbytes:
                raise ValueError(f"{path} is a view, of which plain copies could take any memory; none is written")
            tensors.append(plain_tensor(value, path))
            return {_TENSOR: len(tensors) - 1}
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            for key, _ in items:
                if not isinstance(key, str) or key == _TENSOR:
                    raise ValueError(
                        f"Keys in {path or 'the state'} must be strings other than {_TENSOR!r}; got {key!r}."
                    )
            return {key: plain(item, f"{path}/{key}") for key, item in items}
        if isinstance(value, list | tuple):
            return [plain(item, f"{path}/{index}") for index, item in enumerate(cast("list[Any]", value))]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise ValueError(
            f"{path!r} must be a plain value or a tensor to be saved safely; got a {type(value).__name__}."
        )

    return json.dumps(plain(state, "")), tensors


def _checksum(text: str, tensors: Iterable[Tensor]) -> int:
    """CRC-32 over every value: torch does not notice a flipped bit in a tensor."""
    total = zlib.crc32(text.encode())
    for tensor in tensors:
        total = zlib.crc32(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        contiguous = tensor.contiguous()
        total = zlib.crc32(tensor_bytes(contiguous), total)
    return total


def plain_tensor(tensor: Tensor, name: str) -> Tensor:
    """The tensor on the CPU, detached, and not a view of a larger storage, all of which torch.save would write."""
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        raise ValueError(
            f"{name!r} must be a plain dense tensor to be saved; got a {type(tensor).__name__} of layout "
            f"{tensor.layout}: gather or convert it first."
        )
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor.untyped_storage().nbytes() < tensor.nbytes:
        return tensor.contiguous()  # an expanded tensor
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


def tensor_bytes(tensor: Tensor) -> "ctypes.Array[ctypes.c_char] | bytes":
    """The memory of a contiguous CPU tensor, which must outlive it. `.numpy()` needs numpy, and has no bfloat16."""
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()) if tensor.nbytes else b""


# The two formats ------------------------------------------------------------------------------------------------------


def write_torch(path: Path, content: Mapping[str, Any]) -> None:
    """Write torch's own format to this path (not atomically); a failed write is an `OSError`."""
    try:
        with open(path, "wb") as file:
            torch.save(content, file)
    except RuntimeError as error:
        # torch's writer reports a failed write as an inconsistency of its own; the reason is the exception before.
        raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


def _read_torch(path: Path) -> dict[str, Any] | None:
    with zipfile.ZipFile(path) as archive:
        records = archive.infolist()
    # torch.save compresses nothing, so the records of an honest file are not larger than the file.
    is_compressed = any(record.compress_type != zipfile.ZIP_STORED for record in records)
    if is_compressed or sum(record.file_size for record in records) > path.stat().st_size:
        return None
    content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=False)
    return cast("dict[str, Any]", content) if isinstance(content, dict) else None


def _is_safetensors(path: Path) -> bool:
    return path.suffix.lower() == ".safetensors"


SAFETENSORS_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "C64": torch.complex64,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "BOOL": torch.bool,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
_DTYPE_NAMES = {dtype: name for name, dtype in SAFETENSORS_DTYPES.items()}


def safetensors_header(tensors: Mapping[str, tuple[torch.dtype, Sequence[int]]], metadata: Mapping[str, str]) -> bytes:
    """The header of a safetensors file for tensors of these dtypes and shapes, whose values follow in this order."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    begin = 0
    for name, (dtype, shape) in tensors.items():
        if dtype not in _DTYPE_NAMES:
            raise ValueError(f"{name!r} is {dtype}, which the safetensors format cannot hold: use a '.pt' file.")
        end = begin + dtype.itemsize * torch.Size(shape).numel()
        header[name] = {"dtype": _DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file to this path (not atomically); equal tensors and metadata make equal files.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_safetensors(Path(folder, "file.safetensors"), {"bias": torch.ones(2)}, {"format": "pt"})
    """
    # Wide dtypes first, so that every tensor is aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    plain = {name: plain_tensor(tensors[name], name).contiguous() for name in names}
    header = safetensors_header({name: (tensor.dtype, tensor.shape) for name, tensor in plain.items()}, metadata)
    with open(path, "wb") as file:
        file.write(header)
        for tensor in plain.values():
            file.write(tensor_bytes(tensor))
