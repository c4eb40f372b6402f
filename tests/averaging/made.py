"""Small checkpoints for the tests of averaging, and the slow oracle: everything in memory, in float64."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


def state(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """A state dict as a small network has it: weights, batch-norm statistics, a count."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "conv.weight": torch.randn(4, 3, 3, 3, generator=generator).to(dtype),
        "norm.running_mean": torch.randn(4, generator=generator).to(dtype),
        "norm.running_var": torch.rand(4, generator=generator).to(dtype),
        "norm.num_batches_tracked": torch.tensor(10 * seed),
        "scale": torch.randn((), generator=generator).to(dtype),
        "empty": torch.zeros(0, 3, dtype=dtype),
    }


def mean(states: Sequence[Mapping[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    """The average, as plainly as it can be said."""
    made: dict[str, Tensor] = {}
    for name, last in states[-1].items():
        if not (last.is_floating_point() or last.is_complex()):
            made[name] = last
            continue
        wide = torch.complex128 if last.is_complex() else torch.float64
        stacked = [share * each[name].to(wide) for each, share in zip(states, shares, strict=True)]
        made[name] = torch.stack(stacked).sum(0).to(last.dtype)
    return made


def assert_same(found: Mapping[str, Any], expected: Mapping[str, Tensor]) -> None:
    """The same names, types and shapes, and values as near as one rounding lets them be."""
    assert list(found) == list(expected) or sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        if tensor.is_floating_point() or tensor.is_complex():
            near = 1e-12 if tensor.dtype in (torch.float64, torch.complex128) else torch.finfo(tensor.dtype).eps
            torch.testing.assert_close(found[name], tensor, rtol=near, atol=near / 100, msg=name)
        else:
            assert torch.equal(found[name], tensor), name


def write(path: Path, tensors: Mapping[str, Tensor]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        save_file(dict(tensors), path, {"format": "pt"})
    else:
        torch.save(dict(tensors), path)
    return path


def read(path: Path) -> dict[str, Any]:
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)


def everything_in(folder: Path) -> list[str]:
    """Every file below a folder, hidden ones too."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
