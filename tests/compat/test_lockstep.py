"""Every drop-in has the real library's values after every step, and checkpoints load both ways."""

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.compat.peers import (
    CASES,
    CLASSES,
    MODULES,
    OPTIMIZERS,
    PLAIN,
    Case,
    assert_same,
    blend,
    build_model,
    module_of,
    save_and_load,
    steps,
    tensors,
)

all_cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


# timm averages tied weights twice; test_peers.py checks ours.
RUNS = [
    pytest.param(case, network, id=f"{name}-{network}")
    for name, case in CASES.items()
    for network in ("mlp", "bf16", "half_precision", "tied")
    if network != "tied" or not case.name.startswith("timm")
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("case", "network"), RUNS)
def test_every_update_equals_the_real_librarys(case: Case, network: str, optimizer: str):
    model = build_model(network)
    ours, peer = case.make(model), case.make(model, peer=True)
    for step in steps(model, optimizer=optimizer):
        case.update(ours, model, step)
        case.update(peer, model, step)
        assert_same(ours, peer, case.ulps)


@all_cases
@pytest.mark.parametrize("peer_saves", [True, False])
def test_a_run_resumes_from_the_other_librarys_checkpoint(case: Case, peer_saves: bool):
    model = build_model("mlp")
    saving = case.make(model, peer=peer_saves)
    for step in steps(model, 7):
        case.update(saving, model, step)
    loading = case.make(model, peer=not peer_saves)
    loading.load_state_dict(save_and_load(saving.state_dict()))
    assert_same(loading, saving)
    for step in steps(model, 7, seed=2):
        case.update(saving, model, 7 + step)
        case.update(loading, model, 7 + step)
        assert_same(loading, saving, case.ulps)


# In use --------------------------------------------------------------------------------------------------------------

plain = pytest.mark.parametrize("case", PLAIN.values(), ids=PLAIN)
module_based = pytest.mark.parametrize("case", [PLAIN[name] for name in MODULES], ids=MODULES)


@module_based
def test_values_written_into_the_module_are_kept(case: Case):
    model = build_model("mlp")
    ours, peer = case.make(model), case.make(model, peer=True)
    for step in steps(model):
        case.update(ours, model, step)
        case.update(peer, model, step)
        for average in (ours, peer):
            if step == 4:  # as timm resumes
                module_of(average).load_state_dict(build_model("mlp").state_dict())
            if step == 6:
                average.apply(lambda layer: nn.init.ones_(layer.weight) if isinstance(layer, nn.Linear) else None)
            if step == 8:
                with torch.no_grad():
                    module_of(average)[1].running_mean.fill_(5.0)
        assert_same(ours, peer, case.ulps)


@module_based
def test_references_into_the_module_stay_current(case: Case):
    model = build_model("mlp")
    average = case.make(model)
    module = module_of(average)
    layer, weight, buffer = module[0], module[0].weight, module[1].running_mean
    for step in steps(model):
        case.update(average, model, step)
    assert module_of(average) is module
    assert module[0] is layer and layer.weight is weight and module[1].running_mean is buffer
    saved = case.make(build_model("mlp"))
    saved.load_state_dict(average.state_dict())
    assert torch.equal(weight, module_of(saved)[0].weight)
    average.load_state_dict(case.make(build_model("mlp")).state_dict())
    assert torch.equal(weight, build_model("mlp")[0].weight)


@module_based
def test_a_call_runs_the_average_with_the_models_hooks(case: Case):
    model = build_model("mlp")
    seen = []
    model[0].register_forward_hook(lambda *_: seen.append("called"))
    average = case.make(model)
    inputs = torch.randn(5, 6)
    module_of(average).eval()
    assert torch.equal(average(inputs), module_of(average)(inputs))
    assert len(seen) == 2
    assert module_of(average) is not model


@module_based
def test_counters_are_copied_from_the_live_model(case: Case):
    model = build_model("mlp")
    average = case.make(model)
    for step in steps(model, 5):
        case.update(average, model, step)
        assert module_of(average)[1].num_batches_tracked == step


@module_based
def test_updates_accept_a_wrapped_model(case: Case):
    model = build_model("mlp")
    ours, peer = case.make(model), case.make(model, peer=True)
    wrapped = nn.DataParallel(model)
    for step in steps(model):
        case.update(ours, wrapped, step)
        case.update(peer, model, step)
        assert_same(ours, peer, case.ulps)


@plain
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda average: pickle.loads(pickle.dumps(average))])
def test_a_copy_is_independent(case: Case, duplicate: Callable[[Any], Any]):
    model = build_model("mlp")
    options = {"avg_fn": blend} if case.name == "torch" else {}  # torch's own functions cannot be pickled
    ours, peer = case.make(model, **options), case.make(model, peer=True, **options)
    for step in steps(model, 4):
        case.update(ours, model, step)
        case.update(peer, model, step)
    before = {name: tensor.clone() for name, tensor in tensors(ours).items()}
    copied = duplicate(ours)
    for step in steps(getattr(copied, "model", model), 4, seed=2):
        case.update(copied, model, 4 + step)
        if case.name != "ema_pytorch":  # the copy follows a copy of the live model
            case.update(peer, model, 4 + step)
            assert_same(copied, peer, case.ulps)
    for name, tensor in tensors(ours).items():
        assert name.startswith("online_model") or torch.equal(tensor, before[name]), name
    assert any(not torch.equal(tensor, before[name]) for name, tensor in tensors(copied).items())


# Checks --------------------------------------------------------------------------------------------------------------


@plain
def test_nan_raises_or_is_skipped_or_ignored_by_option(case: Case):
    model = build_model("mlp")
    averages = {choice: case.make(model, on_nonfinite=choice) for choice in ("raise", "skip", "ignore")}
    for step in steps(model, 4):
        for average in averages.values():
            case.update(average, model, step)
    before = {name: tensor.clone() for name, tensor in tensors(averages["skip"]).items()}
    last = list(model.parameters())[-1]
    good = last.detach().clone()
    with torch.no_grad():
        last[1] = float("nan")
    with pytest.raises(FloatingPointError, match="must be finite"):
        case.update(averages["raise"], model, 5)
    case.update(averages["skip"], model, 5)
    case.update(averages["ignore"], model, 5)
    with torch.no_grad():
        last.copy_(good)
    for name, tensor in before.items():
        assert torch.equal(tensors(averages["raise"])[name], tensor), name
        assert torch.equal(tensors(averages["skip"])[name], tensor), name
    assert any(tensor.isnan().any() for tensor in tensors(averages["ignore"]).values())
    with pytest.raises(ValueError, match="on_nonfinite must be"):
        case.update(case.make(model, on_nonfinite="never"), model, 1)


@plain
def test_a_model_of_another_shape_is_refused(case: Case):
    model = build_model("mlp")
    average = case.make(model)
    before = {name: tensor.clone() for name, tensor in tensors(average).items()}
    if case.name == "ema_pytorch":
        model[4] = nn.Linear(8, 5)
        before = {name: tensor for name, tensor in before.items() if not name.startswith("online_model")}
    else:
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 5))
    with pytest.raises(ValueError, match="another shape: '(4.weight|parameter 4)'"):
        case.update(average, model, 1)
    for name, tensor in before.items():
        if name != "step":
            assert torch.equal(tensors(average)[name], tensor), name


@pytest.mark.parametrize("name", CLASSES)
def test_arguments_and_attributes_are_the_real_librarys(name: str):
    ours, peer = CLASSES[name]
    arguments, expected = (inspect.signature(kind.__init__).parameters.values() for kind in CLASSES[name])
    shared = [argument for argument in expected if argument.kind is not argument.VAR_KEYWORD]
    positional = [argument for argument in arguments if argument.kind is not argument.KEYWORD_ONLY]
    assert [argument.name for argument in positional] == [argument.name for argument in shared]
    assert [argument.default or None for argument in positional] == [argument.default or None for argument in shared]
    assert public_names(peer, name) - public_names(ours, name) == NOT_OFFERED.get(name, set())


# Internal steps of an update that are public in the real libraries.
NOT_OFFERED = {
    "timm v3": {"apply_update_", "apply_update_no_buffers_"},
    "ema_pytorch": {
        "buffer_names", "get_buffers_iter", "get_params_iter", "inplace_copy", "inplace_lerp", "parameter_names",
    },
}  # fmt: skip


def public_names(kind: type, name: str) -> set[str]:
    model = build_model("mlp")
    average = PLAIN[name].make(model, peer=kind is CLASSES[name][1])
    return {attribute for attribute in dir(average) if not attribute.startswith("_")}
