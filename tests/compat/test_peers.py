"""Calls, options and folders of single libraries, and where a drop-in differs on purpose."""

import copy
import pickle
from pathlib import Path
from typing import Any

import ema_pytorch
import pytest
import torch
import torch_ema
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import swa_utils

from emabank.compat.diffusers import EMAModel
from emabank.compat.ema_pytorch import EMA
from emabank.compat.timm import ModelEmaV2, ModelEmaV3
from emabank.compat.torch import AveragedModel, update_bn
from emabank.compat.torch_ema import ExponentialMovingAverage
from tests.compat.peers import EVERY_STEP, assert_same, build_model, diffusers, steps, tensors, timm
from tests.on_ranks import drop_ins
from tests.support.ranks import FSDP, run_on_ranks

# torch ---------------------------------------------------------------------------------------------------------------


def test_a_count_of_zero_makes_the_next_update_copy():
    model = build_model("mlp")
    ours, peer = AveragedModel(model), swa_utils.AveragedModel(model)
    for step in steps(model):
        for average in (ours, peer):
            average.update_parameters(model)
            if step == 5:
                average.n_averaged.fill_(0)  # as torchvision does during its warm-up
        assert_same(ours, peer, 2)


def test_two_averaging_functions_are_refused():
    with pytest.raises(ValueError, match="avg_fn must be None"):
        AveragedModel(nn.Linear(1, 1), avg_fn=max, multi_avg_fn=max)


def test_update_bn_weighs_samples_where_torch_weighs_batches():
    batches = [torch.randn(6, 4), (torch.randn(6, 4) + 3, "a label"), torch.randn(2, 4) - 5]
    inputs = torch.cat([batch if isinstance(batch, torch.Tensor) else batch[0] for batch in batches])
    average = AveragedModel(nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5)))
    update_bn(batches, average)
    torch.testing.assert_close(average.module[0].running_mean, inputs.mean(0))
    torch.testing.assert_close(average.module[0].running_var, inputs.var(0))


@pytest.mark.parametrize("training", [True, False])
def test_update_bn_measures_a_module_in_either_mode(training: bool):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).train(training)
    averages = [AveragedModel(model), torch.optim.swa_utils.AveragedModel(model)]
    data = torch.randn(64, 3) * 3 + 2
    for average, update in zip(averages, (update_bn, torch.optim.swa_utils.update_bn), strict=True):
        average.update_parameters(model.train())
        update([data], average)
    ours, theirs = (average.module[1].running_mean for average in averages)
    torch.testing.assert_close(ours, theirs)


def test_update_bn_passes_a_mapping_as_one_argument():
    class Named(nn.BatchNorm1d):
        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return super().forward(batch["inputs"])

    average = AveragedModel(Named(4))
    inputs = torch.randn(64, 4) + 3
    update_bn([{"inputs": inputs}], average)
    torch.testing.assert_close(average.module.running_mean, inputs.mean(0))


# timm ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ModelEmaV2, ModelEmaV3])
def test_tied_weights_are_averaged_once(kind: type):
    model = build_model("tied")
    average = kind(model, decay=0.9)
    expected = model.embed.weight.detach().double()
    for _ in steps(model):
        average.update(model)
        expected = 0.9 * expected + 0.1 * model.embed.weight.detach().double()
    assert average.module.out.weight is average.module.embed.weight
    torch.testing.assert_close(average.module.out.weight.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("version", ["V2", "V3"])
def test_decay_may_change_and_set_copies(version: str):
    model = build_model("mlp")
    ours, peer = {"V2": ModelEmaV2, "V3": ModelEmaV3}[version](model), getattr(timm, f"ModelEma{version}")(model)
    for step in steps(model):
        for average in (ours, peer):
            average.decay = step / 20
            average.update(model)
            if step == 6:
                average.set(model)
        assert_same(ours, peer, 10 if version == "V2" else 0)


class Described(nn.Linear):
    """A layer whose state dict holds more than tensors."""

    def get_extra_state(self):
        return {"version": 1}

    def set_extra_state(self, state):
        assert state == {"version": 1}


def test_a_state_dict_may_hold_more_than_tensors():
    model = Described(2, 2)
    average = ModelEmaV3(model, 0.5)
    nn.init.zeros_(average.module.weight)
    average.update(model)
    assert torch.equal(average.module.weight, model.weight / 2)


@pytest.mark.parametrize("exclude_buffers", [False, True])
def test_a_buffer_outside_the_state_dict_stays_as_it_was_unless_buffers_are_copied(exclude_buffers: bool):
    model = build_model("mlp")
    model.register_buffer("seen", torch.zeros(1), persistent=False)
    model.register_buffer("sparse", torch.eye(3).to_sparse(), persistent=False)
    ours, peer = (kind(model, 0.5, exclude_buffers=exclude_buffers) for kind in (ModelEmaV3, timm.ModelEmaV3))
    model.seen += 1
    for average in (ours, peer):
        average.update(model)
    assert_same(ours, peer)
    assert torch.equal(ours.module.seen, peer.module.seen)


@given(
    step=st.one_of(st.none(), st.integers(0, 100_000)),
    decay=st.floats(0, 1),
    min_decay=st.floats(0, 1),
    update_after_step=st.integers(0, 1000),
    use_warmup=st.booleans(),
    warmup_gamma=st.floats(0.1, 100),
    warmup_power=st.floats(0.1, 2),
)
def test_timms_decay_at_every_step(step: int | None, **options: Any):
    model = nn.Linear(1, 1)
    assert ModelEmaV3(model, **options).get_decay(step) == timm.ModelEmaV3(model, **options).get_decay(step)


# ema_pytorch ---------------------------------------------------------------------------------------------------------


@given(
    step=st.integers(0, 100_000),
    beta=st.floats(0, 1),
    update_after_step=st.integers(0, 1000),
    inv_gamma=st.floats(0.1, 100),
    power=st.floats(0.1, 2),
    min_value=st.floats(0, 1),
)
def test_ema_pytorchs_decay_at_every_step(step: int, **options: Any):
    model = nn.Linear(1, 1)
    ours, peer = EMA(model, **options), ema_pytorch.EMA(model, **options)
    for average in (ours, peer):
        average.step.fill_(step)
    assert ours.get_current_decay() == peer.get_current_decay()


@pytest.mark.parametrize(
    "options",
    [
        {"update_model_with_ema_beta": 0.25},
        {"update_model_with_ema_beta": 0.25, "ignore_names": {"0.weight"}, "param_or_buffer_names_no_ema": {"0.bias"}},
        {"ignore_startswith_names": {"4."}},
        {"update_model_with_ema_beta": 0.25, "beta": 1.0},
    ],
)
def test_switch_ema_writes_the_average_into_the_live_model(options: dict[str, Any]):
    options = {**EVERY_STEP, "update_every": 2, "update_model_with_ema_every": 3, **options}
    models = build_model("mlp"), build_model("mlp")
    ours, peer = EMA(models[0], **options), ema_pytorch.EMA(models[1], **options)
    trainings = [steps(model, optimizer="adam") for model in models]
    random = torch.get_rng_state()
    for _ in range(12):
        for training, average in zip(trainings, (ours, peer), strict=True):
            torch.set_rng_state(random)  # both see the same dropout
            next(training)
            average.update()
        random = torch.get_rng_state()
        assert_same(ours, peer)
        assert ours.model[1].num_batches_tracked == peer.model[1].num_batches_tracked
    for average in (ours, peer):
        average.update_model_with_ema(0.5)
        average.copy_params_from_model_to_ema()
    assert_same(ours, peer)


def test_the_beta_of_construction_decides_whether_the_average_is_frozen():
    model = build_model("mlp")
    for beta in (0.9, 1.0):
        ours, peer = (kind(model, **{**EVERY_STEP, "beta": beta}) for kind in (EMA, ema_pytorch.EMA))
        for step in steps(model):
            for average in (ours, peer):
                average.beta = beta if step < 6 else 1.9 - beta
                average.update()
            assert_same(ours, peer)


def test_the_first_update_makes_a_lazy_copy():
    model = build_model("mlp")
    ours, peer = EMA(model, lazy_init_ema=True, **EVERY_STEP), ema_pytorch.EMA(model, lazy_init_ema=True, **EVERY_STEP)
    assert ours.ema_model is None
    assert list(ours.state_dict()) == list(peer.state_dict())
    for _ in steps(model):
        ours.update()
        peer.update()
        assert_same(ours, peer)


@pytest.mark.parametrize("as_function", [True, False])
def test_the_user_can_pass_the_averaged_module(as_function: bool):
    model, own, other = build_model("mlp"), build_model("mlp"), build_model("mlp")
    ours = EMA(model, (lambda: own) if as_function else own, **EVERY_STEP)
    peer = ema_pytorch.EMA(model, (lambda: other) if as_function else other, **EVERY_STEP)
    for _ in steps(model):
        ours.update()
        peer.update()
        assert_same(ours, peer)
    assert ours.ema_model is own
    assert not own[0].weight.requires_grad


def test_modes_methods_and_optimizer_hook():
    model = build_model("mlp")
    average = EMA(model, forward_method_names=("extra_repr",), include_online_model=False, **EVERY_STEP)
    assert average.model is model and average.online_model == [model]
    inputs = torch.randn(4, 6)
    assert not average.forward_eval(inputs).requires_grad and average.ema_model.training
    assert average.eval() is average.ema_model and not average.ema_model.training and average.training
    assert average.extra_repr.__self__ is average.ema_model
    assert copy.deepcopy(average).extra_repr.__self__ is not average.ema_model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = average.add_to_optimizer_post_step_hook(optimizer)
    optimizer.step()
    handle.remove()
    optimizer.step()
    assert average.step == 1


def test_a_live_model_of_another_precision_is_converted():
    model = build_model("mlp")
    ours, peer = EMA(model, **EVERY_STEP), ema_pytorch.EMA(model, coerce_dtype=True, **EVERY_STEP)
    model.bfloat16()
    for _ in steps(model):
        ours.update()
        peer.update()
        assert_same(ours, peer)
    assert ours.ema_model[0].weight.dtype is torch.float32


def test_wrong_models_of_ema_pytorch_are_refused():
    with pytest.raises(ValueError, match="ema_model must be None"):
        EMA(nn.Linear(1, 1), nn.Linear(1, 1), lazy_init_ema=True)
    with pytest.raises(TypeError, match="model must be a module; got a dict"):
        EMA({"weight": torch.zeros(2)})  # type: ignore[arg-type]


# torch_ema -----------------------------------------------------------------------------------------------------------


def test_the_average_is_in_the_parameters_inside_the_context_only():
    model = build_model("mlp")
    average = ExponentialMovingAverage(model.parameters(), decay=0.9)
    for _ in steps(model):
        average.update()
    live = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(KeyError), average.average_parameters():
        for parameter, shadow in zip(model.parameters(), average.shadow_params, strict=True):
            assert torch.equal(parameter, shadow)
        raise KeyError
    for parameter, value in zip(model.parameters(), live, strict=True):
        assert torch.equal(parameter, value)
    average.copy_to()
    assert torch.equal(next(model.parameters()), average.shadow_params[0])
    average.restore()
    assert torch.equal(next(model.parameters()), live[0])


def test_stored_parameters_are_in_the_checkpoints_of_both_libraries():
    model = build_model("mlp")
    ours = ExponentialMovingAverage(model.parameters(), 0.9)
    peer = torch_ema.ExponentialMovingAverage(model.parameters(), 0.9)
    for _ in steps(model, 3):
        ours.update()
    ours.store()
    peer.load_state_dict(ours.state_dict())
    ours.collected_params = None
    ours.load_state_dict(peer.state_dict())
    for average in (ours, peer):
        with torch.no_grad():
            next(model.parameters()).zero_()
        average.restore()
        assert next(model.parameters()).abs().sum() > 0


def test_loading_writes_into_the_existing_shadow_parameters():
    model = build_model("mlp")
    average, saved = (ExponentialMovingAverage(model.parameters(), 0.9) for _ in range(2))
    for _ in steps(model, 3):
        saved.update()
    shadows = list(average.shadow_params)
    average.load_state_dict(saved.state_dict())
    for shadow, now, value in zip(shadows, average.shadow_params, saved.shadow_params, strict=True):
        assert shadow is now and torch.equal(shadow, value) and shadow is not value


def test_a_copy_follows_its_parameters_and_an_unpickled_average_needs_them():
    model = build_model("mlp")
    average = ExponentialMovingAverage(model.parameters(), 0.9)
    copied, unpickled = copy.deepcopy(average), pickle.loads(pickle.dumps(average))
    for _ in steps(model, 3):
        average.update()
        copied.update()
        unpickled.update(model.parameters())
    assert_same(copied, average)
    assert_same(unpickled, average)
    with pytest.raises(ValueError, match="parameters must be passed"):
        unpickled.update()


def test_wrong_arguments_of_torch_ema_are_refused():
    model = build_model("mlp")
    average = ExponentialMovingAverage(model.parameters(), 0.9)
    with pytest.raises(ValueError, match="decay must be between 0 and 1"):
        ExponentialMovingAverage(model.parameters(), 1.1)
    with pytest.raises(ValueError, match="decay must be between 0 and 1"):
        average.load_state_dict({**average.state_dict(), "decay": -1.0})
    with pytest.raises(ValueError, match="missing: 'parameter 2'"):
        average.update(list(model.parameters())[:2])
    with pytest.raises(RuntimeError, match=r"call store\(\) first"):
        average.restore()
    orphan = ExponentialMovingAverage(build_model("mlp").parameters(), 0.9)
    with pytest.raises(ValueError, match="parameters must be passed"):
        orphan.update()


@pytest.mark.parametrize("kind", [ExponentialMovingAverage, EMAModel])
def test_averages_move_to_another_precision(kind: Any):
    model = build_model("bf16")
    average = kind(model.parameters(), decay=0.9)
    average.to(dtype=torch.float32)
    (average.update if kind is ExponentialMovingAverage else average.step)(model.parameters())
    assert {shadow.dtype for shadow in average.shadow_params} == {torch.float32}
    average.copy_to(model.parameters())
    assert next(model.parameters()).dtype is torch.bfloat16


# diffusers -----------------------------------------------------------------------------------------------------------


@given(
    step=st.integers(0, 100_000),
    decay=st.floats(0, 1),
    min_decay=st.floats(0, 1),
    update_after_step=st.integers(0, 1000),
    use_ema_warmup=st.booleans(),
    inv_gamma=st.floats(0.1, 100),
    power=st.floats(0.1, 2),
)
def test_diffusers_decay_at_every_step(step: int, **options: Any):
    peer = diffusers.training_utils.EMAModel([], **options)
    assert EMAModel([], **options).get_decay(step) == peer.get_decay(step)


def test_frozen_parameters_are_copied():
    model = build_model("mlp")
    ours = EMAModel(model.parameters(), decay=0.6)
    peer = diffusers.training_utils.EMAModel(model.parameters(), decay=0.6)
    for step in steps(model):
        model[0].weight.requires_grad_(step % 3 != 0)
        ours.step(model.parameters())
        peer.step(model.parameters())
        assert_same(ours, peer, 2)
        assert ours.cur_decay_value == peer.cur_decay_value
        assert step % 3 or torch.equal(ours.shadow_params[0], model[0].weight)


def test_store_copy_to_and_restore():
    model = build_model("mlp")
    average = EMAModel(model.parameters(), decay=0.6)
    for _ in steps(model):
        average.step(model.parameters())
    live = model[0].weight.detach().clone()
    average.store(model.parameters())
    average.copy_to(model.parameters())
    assert torch.equal(model[0].weight, average.shadow_params[0])
    average.restore(model.parameters())
    assert torch.equal(model[0].weight, live)
    assert average.temp_stored_params is None
    with pytest.raises(RuntimeError, match=r"call store\(\) first"):
        average.restore(model.parameters())


def test_wrong_arguments_of_diffusers_are_refused():
    model = build_model("mlp")
    average = EMAModel(model.parameters())
    with pytest.raises(TypeError, match=r"Pass model.parameters\(\)"):
        EMAModel(model)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="missing: 'parameter 2'"):
        average.step(list(model.parameters())[:2])
    with pytest.raises(ValueError, match="missing: 'parameter 2'"):
        average.load_state_dict({"shadow_params": average.shadow_params[:2]})
    with pytest.raises(ValueError, match="save_pretrained needs model_cls"):
        average.save_pretrained("nowhere")


@pytest.mark.filterwarnings("ignore")  # of diffusers
@pytest.mark.parametrize("peer_saves", [True, False])
def test_a_saved_folder_loads_in_both_libraries(tmp_path: Path, peer_saves: bool):
    kind = diffusers.UNet2DModel
    model = kind(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(4,), norm_num_groups=2,
        down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",),
    )  # fmt: skip
    saving, loading = (EMAModel, diffusers.training_utils.EMAModel)[:: -1 if peer_saves else 1]
    saved = saving(model.parameters(), 0.9, use_ema_warmup=True, power=0.75, model_cls=kind, model_config=model.config)
    for _ in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        saved.step(model.parameters())
    saved.save_pretrained(tmp_path / "average")
    loaded = loading.from_pretrained(tmp_path / "average", model_cls=kind)
    assert_same(loaded, saved)
    settings = ({**average.state_dict(), "shadow_params": None} for average in (loaded, saved))
    assert next(settings) == next(settings)
    read = kind.from_pretrained(tmp_path / "average")
    assert torch.equal(next(read.parameters()), tensors(saved)["parameter 0"])


# Sharded models -------------------------------------------------------------------------------------------------------


@FSDP
def test_lists_of_sharded_parameters_are_averaged(tmp_path: Path):
    run_on_ranks(drop_ins.check_lists_of_shards, folder=tmp_path)
