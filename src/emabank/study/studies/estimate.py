"""How fast this machine is: the time of a few images through the network of a run.

A few images are enough to know the rest, and a paper-sized network on a CPU would take minutes for a real batch. The
data itself is not needed. May import models, config and cost.
"""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from emabank.study.config import RunConfig
from emabank.study.models import build_network
from emabank.study.studies.cost import Speed, size_of

IMAGES = 4
ROUNDS = 3
ENOUGH = 1.0  # seconds


def measure_speed(config: RunConfig) -> Speed:
    """Time a few images through the network of a run, with as many threads and the memory order that the run will have.

    >>> from emabank.study.config import HardwareConfig, Recipe, TrainingConfig
    >>> recipe = Recipe(training=TrainingConfig(width=4), hardware=HardwareConfig(device="cpu"))
    >>> speed = measure_speed(RunConfig(recipe=recipe, rate=0.1, seed=0, trained_on="80%"))
    >>> speed.training >= speed.forward > 0, speed.flops > 0
    (True, True)
    """
    training, hardware = config.recipe.training, config.recipe.hardware
    size = size_of(config.recipe.data)
    device = torch.device(hardware.device)
    form = torch.channels_last if hardware.channels_last else torch.contiguous_format
    threads = torch.get_num_threads()
    torch.set_num_threads(hardware.threads)
    try:
        with torch.random.fork_rng(devices=[]):
            model = build_network(
                training.network, classes=size.classes, channels=size.image[0], width=training.width
            ).to(device)
            if hardware.channels_last:
                model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            inputs = torch.rand([IMAGES, *size.image], device=device).contiguous(memory_format=form)
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                model(inputs)
            with torch.no_grad():
                forward = _best(lambda: model(inputs), device) / IMAGES
            if forward * training.batch < ENOUGH:  # a small network: what a call costs counts, so batches are real
                inputs = torch.rand([training.batch, *size.image], device=device).contiguous(memory_format=form)
            labels = torch.zeros(len(inputs), dtype=torch.long, device=device)

            def step() -> None:
                torch.autograd.backward(F.cross_entropy(model(inputs), labels))

            both = _best(step, device) / len(inputs)
            with torch.no_grad():
                forward = min(forward, _best(lambda: model(inputs), device) / len(inputs))
    finally:
        torch.set_num_threads(threads)
    return Speed(both, min(forward, both), counter.get_total_flops() / IMAGES)


def _best(part: Callable[[], object], device: torch.device) -> float:
    """The shortest of a few times: whatever else the machine does only adds to it.

    The first is for warming up, unless it is long enough already.
    """
    times: list[float] = []
    while len(times) <= ROUNDS and sum(times) < ENOUGH:
        started = time.perf_counter()
        part()
        if device.type != "cpu":
            torch.get_device_module(device).synchronize()
        times.append(time.perf_counter() - started)
    return min(times[1:] or times)
