"""A configuration is right or refused, and says why."""

import dataclasses

import pytest

from emabank.study.config import DemoConfig


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epochs": 0}, "epochs is 0; give 1 or more"),
        ({"noise": -0.1}, "noise is -0.1; give a share from 0 to 1"),
        ({"noise": float("nan")}, "noise is nan"),
        ({"seed": -1}, "seed is -1; give 0 or a positive number"),
        ({"threads": 0}, "threads is 0; give 1 or more"),
    ],
)
def test_wrong_values_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        DemoConfig(**wrong)


def test_it_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DemoConfig().epochs = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_an_unknown_key_is_an_error():
    with pytest.raises(TypeError, match="epoch"):
        DemoConfig(epoch=3)  # pyright: ignore[reportCallIssue]
