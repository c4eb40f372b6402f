"""Random streams that go on as if nothing had happened. Imports torch alone."""

import random
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def preserved_rng(*loaders: object) -> Generator[None]:
    """Every random stream these loaders may draw from goes on afterwards as if it had not been touched.

    >>> _ = torch.manual_seed(1)
    >>> with preserved_rng():
    ...     inside = torch.rand(1)
    >>> bool(torch.rand(1) == inside)
    True
    """
    restart = rng_restorer(*loaders)
    try:
        yield
    finally:
        restart()


def rng_restorer(*loaders: object) -> Callable[[], None]:
    """What sets every random stream these loaders may draw from to where it is now.

    >>> restart = rng_restorer()
    >>> first = torch.rand(1)
    >>> restart()
    >>> bool(torch.rand(1) == first)
    True
    """
    generators = {id(generator): generator for loader in loaders for generator in _generators(loader)}
    generators[id(torch.default_generator)] = torch.default_generator
    states = [(generator, generator.get_state()) for generator in generators.values()]
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    devices: Any = None if accelerator is None else torch.get_device_module(accelerator)
    on_devices = [(k, devices.get_rng_state(k)) for k in range(torch.accelerator.device_count())] if devices else []
    python, numpy = random.getstate(), sys.modules.get("numpy")
    numpy_state = None if numpy is None else numpy.random.get_state()

    def restart() -> None:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        for generator, state in states:
            generator.set_state(state)
        for number, state in on_devices:
            devices.set_rng_state(state, number)

    return restart


def _generators(loader: object) -> list[torch.Generator]:
    """Those that stand in a loader, its samplers and its data."""
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    holders = [loader, sampler, inner, getattr(loader, "dataset", None)]
    found = [getattr(holder, "generator", None) for holder in holders]
    return [generator for generator in found if isinstance(generator, torch.Generator)]
