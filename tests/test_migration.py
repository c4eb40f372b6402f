"""The adapters: torch's own AveragedModel, and timm's formula, are what they are held against, step by step."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import swa_utils
from torch.utils.data import DataLoader

from emabank import EMA
from emabank.migration import AveragedModel, ModelEmaV3

INPUTS = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


def network(*, norm: bool = True) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5) if norm else nn.Identity(), nn.Linear(5, 2))


def train(model: nn.Module, seed: int) -> None:
    """Something like a step: weights move, and so do statistics."""
    generator = torch.Generator().manual_seed(seed)
    model.train()(torch.randn(8, 4, generator=generator) + seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)


def assert_close(one: nn.Module, other: nn.Module) -> None:
    mine, theirs = one.state_dict(), other.state_dict()
    assert list(mine) == list(theirs)
    for key in mine:
        torch.testing.assert_close(
            mine[key], theirs[key], rtol=1e-5, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}"
        )


FUNCTIONS: dict[str, dict[str, Any]] = {
    "the mean": {},
    "the mean, one by one": {"avg_fn": swa_utils.get_swa_avg_fn()},
    "the mean of many": {"multi_avg_fn": swa_utils.get_swa_multi_avg_fn()},
    "an EMA, one by one": {"avg_fn": swa_utils.get_ema_avg_fn(0.8)},
    "an EMA of many": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.8)},
}


# torch ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("functions", FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_averages_are_torchs_after_each_update(functions: dict[str, Any]):
    model = network()
    mine, theirs = AveragedModel(model, **functions), swa_utils.AveragedModel(model, **functions)
    for step in range(6):
        assert_close(mine.module, theirs.module)
        torch.testing.assert_close(mine.eval()(INPUTS), theirs.eval()(INPUTS), rtol=1e-4, atol=1e-5)
        train(model, step)
        if step != 3:  # SWA's users pass over some
            mine.update_parameters(model)
            theirs.update_parameters(model)
            assert int(mine.n_averaged) == int(theirs.n_averaged)


def test_averaged_statistics_are_torchs_where_all_buffers_are_floats():
    model = network()
    model[1].num_batches_tracked = None  # torch would average this one as well
    functions = FUNCTIONS["an EMA of many"]
    mine = AveragedModel(model, use_buffers=True, **functions)
    theirs = swa_utils.AveragedModel(model, use_buffers=True, **functions)
    for step in range(4):
        train(model, step)
        mine.update_parameters(model)
        theirs.update_parameters(model)
        assert_close(mine.module, theirs.module)


def test_what_is_shown_stays_until_the_next_update():
    model = network()
    mine = AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.8))
    for step in range(3):
        shown = deepcopy(mine.module.state_dict()["0.weight"])
        train(model, step)
        assert torch.equal(mine.module.state_dict()["0.weight"], shown)
        mine.update_parameters(model)
        assert not torch.equal(mine.module.state_dict()["0.weight"], shown)


@pytest.mark.parametrize("functions", FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_checkpoints_go_both_ways(functions: dict[str, Any]):
    model = network()
    mine, theirs = AveragedModel(model, **functions), swa_utils.AveragedModel(model, **functions)
    for step in range(3):
        train(model, step)
        mine.update_parameters(model)
        theirs.update_parameters(model)
    taken, given = AveragedModel(model, **functions), swa_utils.AveragedModel(model, **functions)
    taken.load_state_dict(theirs.state_dict())
    given.load_state_dict(mine.state_dict())
    assert_close(taken.module, theirs.module)
    for step in range(3, 6):
        train(model, step)
        for each in (taken, given, theirs):
            each.update_parameters(model)
    assert_close(taken.module, theirs.module)
    assert_close(given.module, theirs.module)


def test_a_state_can_be_loaded_before_the_second_update():
    model = network()
    functions = FUNCTIONS["an EMA of many"]
    mine, theirs = AveragedModel(model, **functions), swa_utils.AveragedModel(model, **functions)
    theirs.update_parameters(model)
    saved = theirs.state_dict()
    train(model, 0)
    mine.load_state_dict(saved)
    assert_close(mine.module, theirs.module)
    mine.update_parameters(model)
    theirs.update_parameters(model)
    assert_close(mine.module, theirs.module)


def test_torchs_update_bn_measures_the_averages_statistics():
    model = network()
    mine, theirs = AveragedModel(model), swa_utils.AveragedModel(model)
    for step in range(3):
        train(model, step)
        mine.update_parameters(model)
        theirs.update_parameters(model)
    for each in (mine, theirs):
        swa_utils.update_bn(DataLoader(INPUTS, batch_size=3), each)
    assert_close(mine.module, theirs.module)


def test_a_rule_of_ours_will_do_and_any_other_function_is_refused():
    model = network()
    assert AveragedModel(model, avg_fn=EMA(0.9)).bank.rule("average") == EMA(0.9)
    with pytest.raises(ValueError, match="A bank cannot run .*lambda.*get_ema_multi_avg_fn"):
        AveragedModel(model, avg_fn=lambda average, live, count: live)
    with pytest.raises(ValueError, match="takes one of avg_fn and multi_avg_fn"):
        AveragedModel(model, avg_fn=EMA(0.9), multi_avg_fn=EMA(0.9))


# timm ----------------------------------------------------------------------------------------------------------------


class Formula:
    """What timm's ModelEmaV3 computes of each floating tensor, written down again in float64."""

    def __init__(self, model: nn.Module, decay: float, update_after_step: int = 0, use_warmup: bool = False) -> None:
        self.values = {key: value.double() for key, value in model.state_dict().items()}
        self.decay, self.after, self.warmup = decay, update_after_step, use_warmup

    def get_decay(self, step: int | None) -> float:
        if step is None:
            return self.decay
        step = max(0, step - self.after - 1)
        if step <= 0:
            return 0.0
        return min(1 - (1 + step) ** -(2 / 3), self.decay) if self.warmup else self.decay

    def update(self, model: nn.Module, step: int | None = None) -> None:
        decay = self.get_decay(step)
        for key, value in model.state_dict().items():
            average = self.values[key]
            self.values[key] = decay * average + (1 - decay) * value.double() if value.is_floating_point() else value


def assert_follows(shown: dict[str, Tensor], formula: Formula) -> None:
    assert list(shown) == list(formula.values)
    for key, value in shown.items():
        torch.testing.assert_close(value.double(), formula.values[key].double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("with_steps", [True, False])
def test_averages_are_timms_after_each_update(after: int, with_steps: bool):
    model = network()
    mine, formula = ModelEmaV3(model, decay=0.8, update_after_step=after), Formula(model, 0.8, after)
    for step in range(1, 7):
        train(model, step)
        mine.update(model, step if with_steps else None)
        formula.update(model, step if with_steps else None)
        shown = mine.module.state_dict()
        assert_follows(shown, formula)


@pytest.mark.parametrize("after", [0, 2])
def test_the_warm_up_is_timms_and_goes_on_after_loading(after: int):
    model = network()
    given: dict[str, Any] = {"update_after_step": after, "use_warmup": True}
    mine, formula = ModelEmaV3(model, decay=0.6, **given), Formula(model, 0.6, **given)
    for step in range(1, 10):
        if step == 6:
            saved = mine.state_dict()
            mine = ModelEmaV3(model, decay=0.6, **given)
            mine.load_state_dict(saved)
        if step == 8:
            mine.set(model)
            formula.values = {key: value.double() for key, value in model.state_dict().items()}
        train(model, step)
        mine.update(model, step)
        formula.update(model, step)
        assert mine.get_decay(step) == formula.get_decay(step)
        train(model, 100)  # what is shown is of the last update
        assert_follows(
            {**mine.module.state_dict(), "1.num_batches_tracked": formula.values["1.num_batches_tracked"]}, formula
        )
    assert 0.0 < formula.get_decay(after + 2) < formula.get_decay(9) == 0.6


def test_a_warm_up_has_to_be_counted():
    model = network()
    mine = ModelEmaV3(model, use_warmup=True)
    with pytest.raises(ValueError, match="timm would leave the warm-up out. Give"):
        mine.update(model)
    mine.update(model, 5001)
    with pytest.raises(ValueError, match="step=5010.* after step 5001: .* goes up by one"):
        mine.update(model, 5010)


def test_set_begins_with_the_live_weights():
    model = network()
    mine = ModelEmaV3(model, decay=0.8)
    train(model, 1)
    mine.update(model)
    mine.set(model)
    formula = Formula(model, 0.8)
    assert_follows(mine.module.state_dict(), formula)
    train(model, 2)
    mine.update(model)
    formula.update(model)
    assert_follows(mine.module.state_dict(), formula)


def test_excluded_buffers_are_the_live_ones():
    model = network()
    mine = ModelEmaV3(model, decay=0.8, exclude_buffers=True)
    for step in range(3):
        train(model, step)
        mine.update(model)
    assert torch.equal(mine.module[1].running_mean, model[1].running_mean)
    assert not torch.equal(mine.module[0].weight, model[0].weight)


def test_a_state_dict_has_timms_keys_and_goes_on_when_loaded():
    model = network()
    mine, formula = ModelEmaV3(model, decay=0.8), Formula(model, 0.8)
    for step in range(3):
        train(model, step)
        mine.update(model)
        formula.update(model)
    saved = mine.state_dict()
    assert list(saved) == [f"module.{key}" for key in model.state_dict()]
    other = ModelEmaV3(model, decay=0.8)
    other.load_state_dict(saved)
    train(model, 3)
    other.update(model)
    formula.update(model)
    assert_follows(other.module.state_dict(), formula)


def test_what_a_bank_cannot_do_is_refused():
    model = network()
    with pytest.raises(ValueError, match=r"warmup_power=0.75\): a bank has timm's warm-up with its defaults only"):
        ModelEmaV3(model, use_warmup=True, warmup_power=0.75)
    with pytest.raises(ValueError, match="averages the model it was built with"):
        ModelEmaV3(model).update(network())


# Both ----------------------------------------------------------------------------------------------------------------


def test_the_module_shown_is_one_object_in_eval_mode_and_a_wrapped_model_may_update():
    model = network(norm=False)
    mine = ModelEmaV3(model, decay=0.5)
    shown = mine.module
    assert not shown.training and not any(parameter.requires_grad for parameter in shown.parameters())
    train(model, 1)
    mine.update(nn.DataParallel(model))
    assert mine.module is shown
    assert [name for name, _ in mine.named_parameters()] == [f"module.{name}" for name, _ in model.named_parameters()]
    torch.testing.assert_close(mine(INPUTS), shown(INPUTS))
