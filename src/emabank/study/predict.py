"""Predictions: the only place where a model is evaluated on data. Logits are float32 arrays on the CPU."""

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from emabank.preserved import preserved_modes

Precision = Literal["float32", "bf16", "fp16"]
Batches = Iterable[tuple[Tensor, Tensor]]
Logits = np.ndarray
Key = TypeVar("Key", bound=Hashable)

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast_context(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """A context for forward passes in this precision."""
    return nullcontext() if precision == "float32" else torch.autocast(device.type, _DTYPES[precision])


@contextmanager
def threads(count: int) -> Generator[None]:
    """Use `count` CPU threads inside the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def predict_each(
    model: nn.Module,
    weights: Mapping[Key, Mapping[str, Tensor] | None],
    batches: Batches,
    *,
    precision: Precision = "float32",
) -> dict[Key, Logits]:
    """The logits of several sets of weights in eval mode, for every image in the order of the batches.

    Each batch is prepared once and seen by all sets. A set is a mapping from the model's own names to tensors
    (`EMABank.functional` gives one), or None for the weights the model has. The model, its mode and the global random
    state are unchanged afterwards.
    """
    outputs: dict[Key, list[Tensor]] = {name: [] for name in weights}
    sets = _untied(model, weights)
    # Such modules may cache in eval mode what they derive from weights, and drop it in train().
    may_cache = any(type(module).train is not nn.Module.train for module in model.modules())
    # Iterating over a loader may draw from the global generator.
    with preserved_modes(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
        model.eval()
        for inputs, _ in batches:
            with autocast_context(precision, inputs.device):
                for name, tensors in sets.items():
                    if may_cache:
                        model.train()
                        model.eval()
                    # A new dict per call, because a forward pass that replaces a buffer writes the new one into it.
                    output = (
                        model(inputs)
                        if tensors is None
                        else functional_call(model, dict(tensors), (inputs,), tie_weights=False)
                    )
                    outputs[name].append(output.float().cpu())
    if not all(outputs.values()):
        raise ValueError("there are no images to predict; give at least one batch")
    return {name: torch.cat(parts).numpy() for name, parts in outputs.items()}


def features_of(model: nn.Module, batches: Iterable[tuple[Tensor, Any]]) -> Tensor:
    """The inputs of the model's last layer, `[samples, width]` in float32, in the order of the batches.

    The model runs in eval mode and without gradients; its modes and the global random state are unchanged afterwards.
    Batches should come without augmentation and in a fixed order, because only their inputs are used, and the caller
    keeps the labels.
    """
    features: Callable[[Tensor], Tensor] | None = getattr(model, "features", None)
    if not callable(features):
        raise ValueError(f"{type(model).__name__} has no features(x); give it a method that returns [n, width]")
    device = next((parameter.device for parameter in model.parameters()), None)
    with preserved_modes(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
        model.eval()
        computed = [features(inputs.to(device)).float() for inputs, _ in batches]
    if not computed:
        raise ValueError("there are no batches to compute features of; give at least one")
    if computed[0].ndim != 2:
        raise ValueError(
            f"the features of {type(model).__name__} have the shape {tuple(computed[0].shape)}; "
            "its features(x) must return [n, width], what the last layer sees"
        )
    return torch.cat(computed)


def _untied(
    model: nn.Module, weights: Mapping[Key, Mapping[str, Tensor] | None]
) -> dict[Key, Mapping[str, Tensor] | None]:
    """Each set with tied tensors under all of their names, for which `functional_call` would search at every batch."""
    names: dict[int, list[str]] = {}
    for named in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
        for name, tensor in named:
            names.setdefault(id(tensor), []).append(name)
    others = {name: tied for tied in names.values() if len(tied) > 1 for name in tied}

    def untied(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {other: tensor for name, tensor in tensors.items() for other in others.get(name, (name,))}

    return {key: None if tensors is None else untied(tensors) for key, tensors in weights.items()}
