"""States for files: one with everything in it, and when two are the same."""

from typing import Any

import torch

SUFFIXES = (".pt", ".safetensors")


def same(a: Any, b: Any) -> bool:
    """Equal in value and in type, tensors bit for bit."""
    if isinstance(a, torch.Tensor):
        return (
            a.dtype == b.dtype
            and a.shape == b.shape
            and a.contiguous().flatten().view(torch.uint8).equal(b.contiguous().flatten().view(torch.uint8))
        )
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)  # so that NaN equals NaN


def example() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "steps": 17,
        "decay": 0.998,
        "none": None,
        "averages": {"ema-0.998": {"layer.weight": torch.randn(70, 50), "mask": torch.tensor([True, False])}},
        "list": [1, "two", [torch.arange(3)], {}],
    }
