"""Pieces: together they are the tensor, in order, and none is larger than allowed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emabank.averaging.formats import Spec, pieces, raw

shapes = st.lists(st.integers(0, 6), max_size=4).map(tuple)


@given(shapes, st.integers(1, 50))
def test_pieces_are_the_tensor_in_order(shape: tuple[int, ...], most: int):
    tensor = torch.arange(Spec(shape, torch.int64).numel).view(shape)
    cut = list(pieces(shape, most))
    assert torch.cat([torch.empty(0, dtype=torch.int64), *(tensor[piece.index].reshape(-1) for piece in cut)]).equal(
        tensor.reshape(-1)
    )
    for piece in cut:
        assert tensor[piece.index].reshape(-1).tolist() == list(range(piece.start, piece.stop))
        assert 0 < piece.stop - piece.start <= most


@pytest.mark.parametrize("shape", [(50_000, 4096), (1, 30_000_000), (3, 3, 3, 2_000_000), (2**31,)])
def test_a_large_tensor_comes_in_small_pieces(shape: tuple[int, ...]):
    largest = max(piece.stop - piece.start for piece in pieces(shape))
    assert largest <= 2**17, "1 MiB in float64"


@given(st.integers(2**17, 2**24))
def test_five_pieces_in_float64_are_less_than_two_tensors_in_bfloat16_or_a_fixed_little(numel: int):
    largest = max(piece.stop - piece.start for piece in pieces((numel,)))
    assert 5 * 8 * largest < max(2 * 2 * numel * 1.3, 2**20)


def test_raw_bytes_are_those_in_memory():
    tensor = torch.zeros(3, dtype=torch.bfloat16)
    raw(tensor)[0:2] = b"\x80\x3f"
    assert tensor.tolist() == [1, 0, 0]
    assert bytes(raw(torch.empty(0))) == b""
