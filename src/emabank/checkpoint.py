"""A whole bank saved and loaded, one average exported as a plain state dict.

May import files (which writes atomically and reads without running anything) and torch.
"""

import os
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from emabank.files import (
    is_safetensors,
    plain_tensor,
    read_state,
    write_atomically,
    write_safetensors,
    write_state,
    write_torch,
)

if TYPE_CHECKING:
    from emabank.bank import EMABank

__all__ = ["export", "load", "read_state", "save", "write_atomically", "write_safetensors", "write_state"]

# A whole bank --------------------------------------------------------------------------------------------------------


def save(bank: "EMABank", path: str | os.PathLike[str]) -> None:
    """Write the whole state of a bank to one file, atomically; a `.safetensors` suffix chooses that format.

    Any other suffix is torch's own format, which `torch.load(path, weights_only=True)` reads.

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
    batchnorm: Literal["averaged", "recomputed"] = "averaged",
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
