"""What averages cost: time of an update against time of a training step as runs take it, in one interleaved run.

May import the library's public names, models and data.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F

from emabank import EMABank
from emabank.study.config import ProtocolConfig
from emabank.study.data.images import Dataset
from emabank.study.models import build_network
from emabank.study.predict import computing
from emabank.study.report.results import Overhead
from emabank.study.runs.environment import environment

REPETITIONS = 8
EVERY = 16  # the paper's period


def measure_overhead(config: ProtocolConfig, dataset: Dataset, *, repetitions: int = REPETITIONS) -> dict[str, Any]:
    """The cost of the averages of a protocol, as plain values: a step and an update by turns, and the memory."""
    training, hardware = config.training, config.hardware
    device = torch.device("cpu" if hardware.device == "auto" else hardware.device)
    images = dataset.train.images
    channels, threads = images.shape[1], torch.get_num_threads()
    torch.set_num_threads(hardware.threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = build_network(
                training.network, classes=dataset.classes, channels=channels, width=training.width
            ).to(device)
            inputs = torch.rand([training.batch, *images.shape[1:]], device=device)
            if hardware.channels_last:
                model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
                inputs = inputs.contiguous(memory_format=torch.channels_last)
            labels = torch.randint(0, dataset.classes, [training.batch], device=device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, fused=hardware.fused)
            bank = EMABank(model, list(_decays(config)), every=1)

            def step() -> None:
                with computing(hardware.precision, device):
                    loss = F.cross_entropy(model(inputs), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

            steps, updates = _timed(step, bank, device, repetitions)
    finally:
        torch.set_num_threads(threads)
    stored = sum(t.numel() * t.element_size() for name in bank.names for t in bank.weights(name).values())
    overhead = Overhead(
        network=training.network,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        averages=len(bank.names),
        every=EVERY,
        step_seconds=tuple(steps),
        update_seconds=tuple(updates),
        bytes=stored,
        conditions={
            **environment(threads=hardware.threads),
            "batch": training.batch,
            "device": device.type,
            "precision": hardware.precision,
        },
    )
    return asdict(overhead)


def _timed(
    step: Callable[[], None], bank: EMABank, device: torch.device, repetitions: int
) -> tuple[list[float], list[float]]:
    """In turns, so that other load affects both; the first two rounds are a warm-up."""
    steps: list[float] = []
    updates: list[float] = []
    for _ in range(repetitions + 2):
        started = time.perf_counter()
        step()
        _wait(device)
        between = time.perf_counter()
        bank.update()
        _wait(device)
        steps.append(between - started)
        updates.append(time.perf_counter() - between)
    return steps[2:], updates[2:]


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def _decays(config: ProtocolConfig) -> tuple[float, ...]:
    """As many averages as the protocol has; which decays makes no difference to the cost."""
    count = len(config.averages.names)
    return tuple(1 - 0.032 / 2**i for i in range(count))
