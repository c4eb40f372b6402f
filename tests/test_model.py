"""_model.py and _swap.py: which tensors are averaged, and copies of modules."""

import pytest
import torch
from torch import nn

from emabank._model import (
    AveragedTensors,
    ModuleWatch,
    check_materialized,
    check_shapes,
    nonfinite,
    tensor_refs,
    unwrap,
)
from emabank._swap import copy_module, functional_params, plain_keys, state_dict_with, swapped
from emabank.preserved import preserved_modes


def names(model: nn.Module) -> list[str]:
    return [part.name for part in tensor_refs(model)]


def test_trap14_wrappers_are_removed_at_any_depth() -> None:
    inner = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    body = torch.compile(nn.DataParallel(inner), backend="eager")
    outer = nn.ModuleDict({"body": body, "head": nn.Linear(3, 1)})
    wrapped = torch.compile(nn.DataParallel(outer), backend="eager")
    assert names(wrapped)[:5] == ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias", "head.weight"]
    assert unwrap(wrapped) is outer
    raw = list(outer.state_dict())
    assert raw[0] == "body._orig_mod.module.0.weight"
    assert plain_keys(wrapped, raw)[raw[0]] == "body.0.weight"


def test_trap59_a_submodule_called_module_keeps_its_name() -> None:
    model = nn.ModuleDict({"module": nn.Linear(2, 1), "_orig_mod": nn.Linear(2, 1)})
    assert names(nn.DataParallel(model)) == ["module.weight", "module.bias", "_orig_mod.weight", "_orig_mod.bias"]


def test_trap11_a_tied_tensor_has_one_name() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    assert names(model) == ["0.weight"]


def test_a_part_follows_a_buffer_that_is_replaced() -> None:
    model = nn.BatchNorm1d(2)
    part = next(part for part in tensor_refs(model) if part.name == "running_mean")
    model.running_mean = torch.ones(2)
    assert part.tensor is model.running_mean


def test_the_watch_sees_every_change_of_structure() -> None:
    def added(m: nn.Module) -> None:
        m[0].extra = nn.Parameter(torch.zeros(1))

    def added_where_there_was_none(m: nn.Module) -> None:
        m[2].extra = nn.Parameter(torch.zeros(1))

    def removed(m: nn.Module) -> None:
        del m[0].bias

    def module_replaced(m: nn.Module) -> None:
        m[1] = nn.Identity()

    def module_added(m: nn.Module) -> None:
        m.append(nn.ReLU())

    def module_added_to_a_leaf(m: nn.Module) -> None:
        m[0].adapter = nn.Linear(2, 3)

    def module_removed(m: nn.Module) -> None:
        del m[2]

    changes = (
        added,
        added_where_there_was_none,
        removed,
        module_replaced,
        module_added,
        module_added_to_a_leaf,
        module_removed,
    )
    for change in changes:
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU())
        watch = ModuleWatch(model)
        model(torch.randn(4, 2))
        assert watch.unchanged()
        change(model)
        assert not watch.unchanged(), change.__name__


def test_each_modules_mode_is_restored() -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2))
    model[1].eval()
    with pytest.raises(KeyError), preserved_modes(model):
        model.eval()
        assert not any(m.training for m in model.modules())
        raise KeyError
    assert [m.training for m in model.modules()] == [True, True, False]


def test_trap07_lazy_meta_and_sparse_are_refused() -> None:
    with pytest.raises(ValueError, match="'weight' is not initialised yet"):
        check_materialized(nn.LazyLinear(3))
    with pytest.raises(ValueError, match="'weight' is on the meta device"):
        check_materialized(nn.Linear(2, 1, device="meta"))
    sparse = nn.Module()
    sparse.weight = nn.Parameter(torch.eye(3).to_sparse())
    with pytest.raises(ValueError, match="'weight' must be a dense .* got torch.sparse_coo"):
        check_materialized(sparse)
    check_materialized(with_sparse_buffer())


def with_sparse_buffer() -> nn.Module:
    model = nn.Linear(3, 2)
    model.register_buffer("graph", torch.eye(3).to_sparse())
    return model


# Copies ---------------------------------------------------------------------------------------------------------------


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


# Following the live model ---------------------------------------------------------------------------------------------


def tracked(model: nn.Module, **options) -> AveragedTensors:
    defaults = {"parameters": "all", "statistics": True, "dtype": torch.float32, "device": None}
    return AveragedTensors(model, 1, **{**defaults, **options})


def test_parameters_and_batch_norm_statistics_are_tracked_and_nothing_else() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model.register_buffer("running_total", torch.zeros(1))
    model.index = nn.Parameter(torch.arange(3), requires_grad=False)
    assert tracked(model).names == (
        "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"
    )  # fmt: skip
    assert tracked(model, statistics=False).names == ("0.weight", "0.bias", "1.weight", "1.bias")


def test_verify_ties_anew_only_where_something_moved() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    averaged = tracked(model)
    assert averaged.refresh()
    model(torch.randn(4, 2))
    assert averaged.refresh()
    for change in (
        lambda: setattr(model[0].weight, "data", model[0].weight.data.clone()),
        lambda: setattr(model[1], "running_mean", torch.ones(3)),
        lambda: setattr(model[0], "bias", nn.Parameter(torch.ones(3))),
        lambda: model.double(),
    ):
        change()
        assert not averaged.refresh()
        assert averaged.refresh()


def test_a_statistic_that_went_away_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, affine=False))
    averaged = tracked(model)
    model[1] = nn.Identity()
    with pytest.raises(ValueError, match="has changed .* missing: '1.running_mean', '1.running_var'"):
        averaged.refresh()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_nonfinite_names_the_tensor(dtype: torch.dtype) -> None:
    bad = torch.ones(10, dtype=dtype)
    bad[3] = float("inf")
    assert nonfinite({"fine": torch.ones(5, dtype=dtype), "bad": bad, "empty": torch.ones(0, dtype=dtype)}) == ["bad"]


def test_a_sum_that_overflows_is_not_a_bad_value() -> None:
    assert nonfinite({"large": torch.full((10,), 60000.0, dtype=torch.float16)}) == []


def test_a_misfit_says_everything_at_once() -> None:
    says = r"It does not fit: missing: 'a'; new: 'c'; another shape: 'b' is \(2,\), not \(1,\)\."
    with pytest.raises(ValueError, match=says):
        check_shapes("It does not fit", {"a": (1,), "b": (1,)}, {"b": (2,), "c": (1,)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.float64])
def test_the_initial_share_is_that_of_all_tensors_whatever_their_size_and_layout(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    shapes = [(), (0, 3), (3,), (40, 40), (7, 1024), (300, 700), (30, 40, 3, 3)]
    model = nn.ParameterList([torch.randn(shape, dtype=dtype) for shape in shapes])
    model[-1].data = model[-1].data.to(memory_format=torch.channels_last)
    before = [parameter.detach().clone() for parameter in model]
    averaged = tracked(model)
    with torch.no_grad():
        for parameter in model:
            parameter.mul_(0.3).add_(torch.randn_like(parameter))

    def real(tensor: torch.Tensor) -> torch.Tensor:
        return (torch.view_as_real(tensor) if dtype.is_complex else tensor).double()

    pairs = [(real(now.detach()), real(old) - real(old).mean()) for now, old in zip(model, before, strict=True)]
    pairs = [(now, old) for now, old in pairs if old.numel()]
    shared = sum(float((now * old).sum()) for now, old in pairs)
    own = sum(float(old.square().sum()) for _, old in pairs)
    assert averaged.initial_share_left() == pytest.approx(shared / own, rel=0.01)  # of large tensors it takes a sample


def test_constants_say_nothing_about_the_initial_share() -> None:
    model = nn.ParameterList([torch.full((3, 1500), 0.1), torch.ones(7), torch.zeros(40_000)])
    averaged = tracked(model)
    with torch.no_grad():
        for parameter in model:
            parameter.normal_()
    assert averaged.initial_share_left() == 1.0
