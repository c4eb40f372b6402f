"""Small protocols for the tests: a network, some digits, and a runner in this process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from emabank.study.config import DataConfig, HardwareConfig, MeasuringConfig, Place, ProtocolConfig, TrainingConfig
from emabank.study.data.digits import digits_dataset
from emabank.study.data.images import Dataset, make_images
from emabank.study.executors import Outcome
from emabank.study.protocol import Protocol
from emabank.study.run_job import Job, folder_of, run_job, task_of
from emabank.study.runs.reader import RunFolder
from emabank.study.studies.catalogue import Setting
from emabank.study.studies.scheduler import run_setting

DIGITS = digits_dataset()


class Net(nn.Module):
    """A small network with batch norm, and with features for a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(4 * 36, 10)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


def without_batchnorm() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def small_digits(*, random_test: bool = False) -> Dataset:
    """160 training digits and 60 test digits, or test images and labels drawn at random."""
    test = make_images(DIGITS.test.images[:60], DIGITS.test.labels[:60])
    if random_test:
        generator = torch.Generator().manual_seed(1)
        pixels = torch.randint(0, 17, test.images.shape, generator=generator, dtype=torch.uint8)
        test = make_images(pixels, torch.randint(0, 10, (60,), generator=generator))
    return Dataset("small", 10, make_images(DIGITS.train.images[:160], DIGITS.train.labels[:160]), test)


def protocol(**changes: Any) -> ProtocolConfig:
    """A protocol of a few seconds."""
    small: dict[str, Any] = {
        "data": DataConfig(dataset="own"),
        "training": TrainingConfig(network="own", epochs=4, batch=40),
        "hardware": HardwareConfig(device="cpu"),
        "rates": (0.05, 0.2),
        "seeds": 2,
    }
    return ProtocolConfig(**{**small, **changes}).completed()


class Runner:
    """Runs jobs in this process, records which it trained, and interrupts every run after the first `last`."""

    def __init__(self, runs: Path, *, make_model: Any = Net, random_test: bool = False, last: int = 10**9) -> None:
        self.place = Place(runs=runs)
        self.dataset = small_digits(random_test=random_test)
        self.make_model, self.last = make_model, last
        self.trained: list[Job] = []

    def __call__(self, jobs: Sequence[Job], **counted: int) -> dict[str, Outcome]:
        return {self.run(job).id: Outcome(task=task_of(job, self.place), state="done") for job in jobs}

    def run(self, job: Job) -> RunFolder:
        if not folder_of(job.config, self.place).is_done():
            self.trained.append(job)
        steps = iter(range(10**9))
        is_interrupted = len(self.trained) > self.last

        def should_stop() -> bool:
            return is_interrupted and next(steps) == 2

        return run_job(job, self.place, self.dataset, make_model=self.make_model, should_stop=should_stop)

    def run_protocol(self, config: ProtocolConfig, **more: Any) -> Protocol:
        setting = Setting(name="own", config=config, make_model=self.make_model, **more)
        return run_setting(setting, self.place, dataset=self.dataset, run_jobs=self, say=lambda sentence: None)


EVERYTHING = protocol(
    data=DataConfig(dataset="own", noise=0.3),
    measuring=MeasuringConfig(on_train=True, test_curves=True),
)
