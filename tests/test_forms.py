"""forms.py: a tensor in any memory order, as one dimension and back."""

import pytest
import torch
from torch import Tensor

from emabank._storage import TensorLayout

TENSORS = {
    "plain": torch.randn(3, 4),
    "scalar": torch.randn(()),
    "empty": torch.randn(0, 3),
    "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "transposed": torch.randn(5, 7).t(),
    "of a larger one": torch.randn(9, 4)[2:5],
    "complex": torch.randn(3, 2, dtype=torch.complex64),
    "with gaps": torch.randn(4, 6)[:, ::2],
    "complex with gaps": torch.randn(4, 6, dtype=torch.complex64)[:, ::2],
    "expanded": torch.randn(4, 1).expand(4, 3),
}


@pytest.mark.parametrize("name", TENSORS)
def test_flat_and_shaped_are_inverse(name: str) -> None:
    tensor = TENSORS[name]
    form = TensorLayout.of(tensor)
    flatten = form.flatten(tensor).clone()
    assert flatten.dim() == 1
    assert flatten.numel() == form.numel
    assert torch.equal(form.unflatten(flatten), tensor)


@pytest.mark.parametrize("name", TENSORS)
def test_a_dense_tensor_is_seen_and_not_copied(name: str) -> None:
    tensor = TENSORS[name]
    dense = name not in ("with gaps", "complex with gaps", "expanded")
    assert TensorLayout.of(tensor).is_dense == dense
    if dense and tensor.numel():
        assert TensorLayout.of(tensor).flatten(tensor).data_ptr() == tensor.data_ptr()


def test_values_of_another_order_are_arranged_as_the_live_tensor() -> None:
    live: Tensor = TENSORS["channels_last"]
    values = torch.randn(2, 3, 4, 5)
    assert torch.equal(TensorLayout.of(live).unflatten(TensorLayout.of(live).flatten_like(values).clone()), values)


@pytest.mark.parametrize(
    ("dtype", "least", "precision"),
    [
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float64, torch.float32, torch.float64),
        (torch.float32, torch.float64, torch.float64),
        (torch.complex128, torch.float32, torch.float64),
        (torch.float8_e4m3fn, torch.float32, torch.float32),
    ],
)
def test_averages_are_never_narrower_than_the_tensor(
    dtype: torch.dtype, least: torch.dtype, precision: torch.dtype
) -> None:
    assert TensorLayout.of(torch.zeros(2, dtype=dtype)).precision(least) == precision
