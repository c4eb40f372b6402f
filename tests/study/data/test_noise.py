"""Symmetric label noise: exactly the share, always another class, the same for the same seed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emabank.study.data.noise import symmetric_noise


@given(
    labels=st.integers(2, 12).flatmap(
        lambda classes: st.tuples(st.just(classes), st.lists(st.integers(0, classes - 1), max_size=60))
    ),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_exactly_the_share_and_always_another_class(labels: tuple[int, list[int]], share: float, seed: int):
    classes, given_labels = labels
    true = torch.tensor(given_labels, dtype=torch.int64)
    noisy, wrong = symmetric_noise(true, share, classes=classes, seed=seed)
    assert int(wrong.sum()) == round(share * len(true))
    assert torch.equal(noisy != true, wrong)
    assert noisy.dtype == true.dtype
    assert noisy.numel() == 0 or (int(noisy.min()) >= 0 and int(noisy.max()) < classes)
    assert true.tolist() == given_labels, "the labels given must stay as they were"
    again, wrong_again = symmetric_noise(true, share, classes=classes, seed=seed)
    assert torch.equal(noisy, again)
    assert torch.equal(wrong, wrong_again)


def test_every_other_class_is_as_likely():
    true = torch.arange(10).repeat(9000)
    noisy, _ = symmetric_noise(true, 1.0, classes=10, seed=0)
    counts = torch.zeros(10, 10).index_put_((true, noisy), torch.ones(len(true)), accumulate=True)
    assert (counts.diagonal() == 0).all()
    expected, others = 1000, ~torch.eye(10, dtype=torch.bool)
    assert ((counts[others] - expected).abs() < 5 * expected**0.5).all()


def test_seeds_differ_and_other_random_numbers_do_not_matter():
    true = torch.arange(10).repeat(50)
    torch.manual_seed(1)
    first, _ = symmetric_noise(true, 0.4, classes=10, seed=0)
    before = torch.get_rng_state()
    second, _ = symmetric_noise(true, 0.4, classes=10, seed=0)
    other, _ = symmetric_noise(true, 0.4, classes=10, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"share": 1.5, "classes": 3}, "share is 1.5; give the share"),
        ({"share": float("nan"), "classes": 3}, "share is nan"),
        ({"share": 0.5, "classes": 1}, "classes is 1"),
        ({"share": 0.5, "classes": 2}, "labels go from 0 to 2; with classes=2"),
    ],
)
def test_what_cannot_be_is_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        symmetric_noise(torch.tensor([0, 1, 2]), seed=0, **arguments)
