"""Small checkpoints for the tests of averaging, and the oracle: all tensors in memory, summed in float64."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


def state(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """A state dict like that of a small network: weights, batch-norm statistics, a count."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "conv.weight": torch.randn(4, 3, 3, 3, generator=generator).to(dtype),
        "norm.running_mean": torch.randn(4, generator=generator).to(dtype),
        "norm.running_var": torch.rand(4, generator=generator).to(dtype),
        "norm.num_batches_tracked": torch.tensor(10 * seed),
        "scale": torch.randn((), generator=generator).to(dtype),
        "empty": torch.zeros(0, 3, dtype=dtype),
    }


def mean(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float] | None = None) -> dict[str, Tensor]:
    """The average, by its definition; without weights, the plain mean."""
    weights = weights or [1 / len(states)] * len(states)
    average: dict[str, Tensor] = {}
    for name, last in states[-1].items():
        average[name] = last
        if last.is_floating_point() or last.is_complex():
            wide = torch.complex128 if last.is_complex() else torch.float64
            terms = [weight * state[name].to(wide) for state, weight in zip(states, weights, strict=True)]
            average[name] = torch.stack(terms).sum(0).to(last.dtype)
    return average


def assert_average(actual: Mapping[str, Any], expected: Mapping[str, Tensor]) -> None:
    """The same tensors, with values that differ by one rounding at most."""
    assert sorted(actual) == sorted(expected)
    for name, tensor in expected.items():
        is_exact = not (tensor.is_floating_point() or tensor.is_complex())
        error = 0.0 if is_exact else max(torch.finfo(tensor.dtype).eps, 1e-12)
        torch.testing.assert_close(actual[name], tensor, rtol=error, atol=error / 100)


def write(path: Path, tensors: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        save_file(dict(tensors), path, {"format": "pt"})
    else:
        torch.save(dict(tensors), path)
    return path


def write_all(folder: Path, suffix: str, states: Sequence[Mapping[str, Any]]) -> list[Path]:
    """One file per state: step-0, step-1, ..."""
    return [write(folder / f"step-{step}{suffix}", state) for step, state in enumerate(states)]


def read(path: Path) -> dict[str, Any]:
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)


def everything_in(folder: Path) -> list[str]:
    """All files and folders below a folder, including hidden ones."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
