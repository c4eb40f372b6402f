"""Random streams after the block are what they would have been without it."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from emabank.preserved import preserved_rng


def draw(generator: torch.Generator) -> list[float]:
    return [random.random(), float(np.random.rand()), torch.rand(1).item(), torch.rand(1, generator=generator).item()]


@pytest.mark.parametrize("fails", [False, True])
def test_every_random_stream_continues_as_without_the_block(fails: bool):
    generator = torch.Generator()
    loader = DataLoader(torch.arange(4), sampler=RandomSampler(range(4), generator=generator))

    def seed_all() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        generator.manual_seed(1)

    seed_all()
    expected = draw(generator)
    seed_all()
    try:
        with preserved_rng(loader, None):
            assert draw(generator) == expected
            assert fails is False
    except AssertionError:
        assert fails
    assert draw(generator) == expected
