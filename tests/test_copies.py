"""copies.py: the three ways to see a model with other values in it."""

import torch
from torch import nn

from emabank._swap import copy_module, functional_params, state_dict_with, swapped


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


VALUES = {"0.bias": torch.full((3,), 7.0), "1.running_mean": torch.full((3,), 9.0)}


def test_swapped_puts_values_in_and_back() -> None:
    model = net()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    values = dict(VALUES)
    with swapped(model, values, None):
        assert values == {}  # let go as they came into their places: a large model has no room for both
        assert model[0].bias.tolist() == [7.0] * 3
        assert model[1].running_mean.tolist() == [9.0] * 3
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_state_dict_hook_that_renames_keys_keeps_its_say() -> None:
    model = net()
    model.register_state_dict_post_hook(lambda m, state, prefix, meta: state.update(renamed=state.pop("0.bias")))
    state = state_dict_with(model, VALUES)
    assert state["renamed"].tolist() == [7.0] * 3
    assert "0.bias" not in state


def test_extra_state_comes_along_as_a_copy() -> None:
    class Extra(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 3)
            self.notes = {"seen": [1]}

        def get_extra_state(self) -> dict:
            return self.notes

        def set_extra_state(self, state: dict) -> None:
            self.notes = state

    model = nn.Sequential(Extra())
    state = state_dict_with(model, {})
    model[0].notes["seen"].append(2)
    assert state["0._extra_state"] == {"seen": [1]}


def test_functional_tensors_are_in_the_live_dtypes_and_buffers_are_copies() -> None:
    model = net().double()
    tensors = functional_params(model, VALUES)
    assert tensors["0.bias"].dtype == torch.float64
    assert tensors["1.running_var"].data_ptr() != model[1].running_var.data_ptr()
    assert tensors["0.weight"].data_ptr() == model[0].weight.data_ptr()


def test_a_model_that_keeps_an_activation_can_be_copied() -> None:
    model = net()
    model.last = model(torch.randn(4, 2))  # hangs on a graph, which deepcopy refuses
    module = copy_module(model, VALUES)
    assert module[0].bias.tolist() == [7.0] * 3
    assert not module.last.requires_grad
