"""NaN and inf never enter an average unnoticed."""

import pytest
import torch
from torch import nn

from emabank import EMABank
from tests.support.oracle import states_equal


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_trap49_one_nan_or_inf_in_a_large_tensor_never_enters_an_average(value: float) -> None:
    model = nn.Linear(1500, 1500, bias=False)
    raising, skipping = (EMABank(model, [0.9], every=1, on_nonfinite=policy) for policy in ("raise", "skip"))
    raising.update(), skipping.update()
    before = raising.weights(0.9)["weight"]
    with torch.no_grad():
        model.weight[1000, 1000] = value
    with pytest.raises(FloatingPointError, match="at step 2, in 'weight'"):
        raising.update()
    assert not skipping.update()
    assert (skipping.num_skipped, skipping.num_updates) == (1, 1)
    for bank in (raising, skipping):
        assert torch.equal(bank.weights(0.9)["weight"], before)


def test_an_ignored_nan_is_never_returned_or_saved() -> None:
    model = nn.Linear(1500, 1500, bias=False)
    bank = EMABank(model, [0.9], every=1, on_nonfinite="ignore")
    with torch.no_grad():
        model.weight[1000, 1000] = float("nan")
    assert bank.update()
    for read in (bank.weights, bank.module, lambda name: bank.applied(name).__enter__()):
        with pytest.raises(FloatingPointError, match="reset"):
            read(0.9)
    with pytest.raises(FloatingPointError):
        bank.state_dict()


def test_a_nan_weight_is_refused_when_the_bank_is_built() -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.bias[0] = float("nan")
    with pytest.raises(ValueError, match="'bias' hold NaN or inf when the bank is built"):
        EMABank(model, [0.9])


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_trap49_a_reset_to_nan_is_refused_and_changes_nothing(policy: str) -> None:
    model = nn.Linear(2, 1)
    bank = EMABank(model, [0.9], on_nonfinite=policy)
    before = bank.state_dict()
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="'weight'"):
        bank.reset()
    assert states_equal(bank.state_dict(), before)


def test_finite_weights_whose_sum_overflows_are_accepted() -> None:
    model = nn.Linear(3000, 3, bias=False)
    nn.init.constant_(model.weight, 3e38)
    bank = EMABank(model, [0.9], every=1)
    assert bank.update()
    assert torch.isfinite(bank.weights(0.9)["weight"]).all()


def test_infinite_weights_do_not_warn_of_a_loaded_checkpoint():
    model = nn.Linear(2, 1)
    bank = EMABank(model, [0.99], every=2)
    with torch.no_grad():
        model.weight.copy_(model.weight)
        model.weight.fill_(float("inf"))
    assert not bank.update()  # a warning would be an error
    with pytest.raises(FloatingPointError, match="hold NaN or inf"):
        bank.update()
