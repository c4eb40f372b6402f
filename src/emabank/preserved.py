"""What is as before once a block ends, however it ends: random streams, and the modes of modules."""

import random
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def undone_by(undo: Callable[[], None]) -> Generator[None]:
    """Call `undo` at the end of a block, and once more, for an interrupt during the first call.

    Unlike the callbacks of an `ExitStack`, which an interrupt before the first of them would leave out.
    """
    try:
        try:
            yield
        finally:
            undo()
    finally:
        undo()


@contextmanager
def preserved_modes(model: nn.Module) -> Generator[None]:
    """Put every module back into its own mode (training or eval) afterwards."""
    modes = [(module, module.training) for module in model.modules()]

    def restore() -> None:
        for module, mode in modes:
            module.training = mode

    with undone_by(restore):
        yield


@contextmanager
def eval_mode(model: nn.Module) -> Generator[None]:
    """The model in eval mode; afterwards every module in its own mode again.

    Enter it once the weights are in place: modules that derive something from them in eval mode (a cache, merged
    LoRA weights) drop it in train(), which is therefore called before and after.
    """
    training = model.training
    with preserved_modes(model):
        model.train()
        model.eval()
        try:
            yield
        finally:
            model.train()
            if not training:
                model.eval()


@contextmanager
def preserved_rng(*loaders: object) -> Generator[None]:
    """Restore every random stream afterwards: Python's, NumPy's, torch's, and the generators of these loaders.

    >>> _ = torch.manual_seed(1)
    >>> with preserved_rng():
    ...     inside = torch.rand(1)
    >>> bool(torch.rand(1) == inside)
    True
    """
    generators = {id(generator): generator for loader in loaders for generator in _generators(loader)}
    generators[id(torch.default_generator)] = torch.default_generator
    states = [(generator, generator.get_state()) for generator in generators.values()]
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    devices: Any = None if accelerator is None else torch.get_device_module(accelerator)
    device_states = (
        [devices.get_rng_state(index) for index in range(torch.accelerator.device_count())] if devices else []
    )
    python_state, numpy = random.getstate(), sys.modules.get("numpy")
    numpy_state = None if numpy is None else numpy.random.get_state()

    def restore() -> None:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        for generator, state in states:
            generator.set_state(state)
        for index, state in enumerate(device_states):
            devices.set_rng_state(state, index)

    with undone_by(restore):
        yield


def _generators(loader: object) -> list[torch.Generator]:
    """The generators of a loader, its samplers and its dataset."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = [loader, getattr(loader, "sampler", None), getattr(batch_sampler, "sampler", None)]
    owners.append(getattr(loader, "dataset", None))
    generators = [getattr(owner, "generator", None) for owner in owners]
    return [generator for generator in generators if isinstance(generator, torch.Generator)]
