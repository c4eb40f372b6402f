"""Shares: what each means as a recursion or a mean, and that they add up to 1."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emabank.averaging import ema_shares, given_shares, last_shares, uniform_shares


@given(st.integers(1, 40), st.floats(0, 0.999))
def test_an_ema_is_its_recursion_from_zero_corrected_as_adam_does(count: int, decay: float):
    values = [float((7 * at) % 11) for at in range(count)]
    average = 0.0
    for value in values:
        average = decay * average + (1 - decay) * value
    average /= 1 - decay**count
    shares = ema_shares(count, decay)
    assert math.fsum(share * value for share, value in zip(shares, values, strict=True)) == pytest.approx(average)
    assert math.fsum(shares) == pytest.approx(1, abs=1e-12)


def test_the_others():
    assert uniform_shares(2) == [0.5, 0.5]
    assert last_shares(5, 2) == [0, 0, 0, 0.5, 0.5] and last_shares(3, 3) == uniform_shares(3)
    assert given_shares(3, [0, 2, 6]) == [0, 0.25, 0.75]
    assert given_shares(2, [1e308, 1e308]) == [0.5, 0.5]
    assert ema_shares(3, 0) == [0, 0, 1] and ema_shares(1, 0.9) == [1]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: last_shares(3, 4), "The last 4 of 3 checkpoints: give a number from 1 to 3."),
        (lambda: last_shares(3, 0), "give a number from 1 to 3"),
        (lambda: ema_shares(3, 1.0), "A decay of 1.0: it is the weight of the past, a number from 0 to below 1"),
        (lambda: ema_shares(3, math.nan), "A decay of nan"),
        (lambda: given_shares(3, [1, 2]), "There are 2 weights for 3 checkpoints; give one for each."),
        (lambda: given_shares(2, [0, 0]), "numbers from 0 on, and one above 0"),
        (lambda: given_shares(2, [-1, 2]), "numbers from 0 on"),
        (lambda: given_shares(2, [math.inf, 2]), "numbers from 0 on"),
        (lambda: uniform_shares(0), "give at least one"),
    ],
)
def test_what_is_no_share_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        wrong()
