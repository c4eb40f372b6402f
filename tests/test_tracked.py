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
