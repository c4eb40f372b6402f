"""tracked.py: what is averaged, found bad, or no longer fits."""

import pytest
import torch
from torch import nn

from emabank._model import AveragedTensors, check_shapes, nonfinite


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
    each = tracked(model)
    assert each.refresh()
    model(torch.randn(4, 2))
    assert each.refresh()
    for change in (
        lambda: setattr(model[0].weight, "data", model[0].weight.data.clone()),
        lambda: setattr(model[1], "running_mean", torch.ones(3)),
        lambda: setattr(model[0], "bias", nn.Parameter(torch.ones(3))),
        lambda: model.double(),
    ):
        change()
        assert not each.refresh()
        assert each.refresh()


def test_a_statistic_that_went_away_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, affine=False))
    each = tracked(model)
    model[1] = nn.Identity()
    with pytest.raises(ValueError, match="'1.running_mean', '1.running_var' are no longer in the model"):
        each.refresh()


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
