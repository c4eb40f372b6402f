"""Random streams that continue as if nothing had happened."""

import random
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch


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

    # The second `finally` is for an interrupt during the first.
    try:
        try:
            yield
        finally:
            restore()
    finally:
        restore()


def _generators(loader: object) -> list[torch.Generator]:
    """The generators of a loader, its samplers and its dataset."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = [loader, getattr(loader, "sampler", None), getattr(batch_sampler, "sampler", None)]
    owners.append(getattr(loader, "dataset", None))
    generators = [getattr(owner, "generator", None) for owner in owners]
    return [generator for generator in generators if isinstance(generator, torch.Generator)]
