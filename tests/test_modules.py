"""modules.py: names without wrappers, by type and at any depth."""

import pytest
import torch
from torch import nn

from emabank._model import ModuleWatch, check_materialized, evaluating, tensor_refs, unwrap
from emabank._swap import plain_keys


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


def test_evaluating_restores_each_modules_mode() -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2))
    model[1].eval()
    with pytest.raises(KeyError), evaluating(model):
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
