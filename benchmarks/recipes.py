"""Who takes part in the training benchmark: the study's loop and loader, and what people write by hand, as contestants.

A turn is a few steps (or batches), and the next turn goes on after them, so that all is as in the middle of an epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as MapStyle
from torch.utils.hooks import RemovableHandle

from emabank import EMABank, recalibrate_batchnorm
from emabank.bench.interleave import Contestant
from emabank.bench.peers import DECAYS
from emabank.bench.steps import PERIOD
from emabank.study.config import RunConfig
from emabank.study.data.images import Dataset, Images, Normalisation, make_images
from emabank.study.data.loader import batches
from emabank.study.data.splits import Parts
from emabank.study.datasets import load_dataset
from emabank.study.measures import evaluation_batch
from emabank.study.models.catalogue import build_network
from emabank.study.predict import predict_each
from emabank.study.recipe import AveragesConfig, DataConfig, HardwareConfig, Recipe, TrainingConfig
from emabank.study.train import LIVE, Interrupted, Training

SPARSE, DENSE, BARE = f"emabank, every {PERIOD}", "emabank, every 1", "bare loop"
UPDATES, ALL, ALONE, RECALIBRATION = "updates", "evaluation, live and five", "evaluation, live", "recalibration"
LOADER = "Loader"
RECIPE, DATALOADER = "plain recipe, {} workers", "DataLoader, {} workers"
DRAWN = 16  # batches in a turn of a pipeline alone

CLASSES = 10
CROP = 4
EPOCHS = 10_000  # of the configuration: more than any benchmark gets through, so that no turn meets the end of a run

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Size:
    """What a turn does: `steps` of `batch` images, or `evaluated` or `recalibrated` images; how large an epoch is."""

    steps: int
    batch: int
    evaluated: int
    recalibrated: int
    train: int
    validation: int


def size_of(parts: Parts, *, steps: int, batch: int) -> Size:
    """Evaluation and recalibration go by whole batches, of the size that the study has for them."""
    train, validation = len(parts.train), 0 if parts.validation is None else len(parts.validation)
    evaluated, recalibrated = (min(evaluation_batch(parts.train), count) for count in (validation, train))
    return Size(steps, batch, evaluated, recalibrated, train, validation)


def cifar_like(images: int, *, folder: Path | None = None) -> Dataset:
    """CIFAR-10 from its folder, or so many images of its shape with random pixels: a step takes the same time."""
    if folder is not None:
        return load_dataset(DataConfig(dataset="cifar10"), folder)
    pixels = torch.randint(256, (images, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    part = make_images(pixels, torch.arange(images) % CLASSES)
    return Dataset("random images of CIFAR's shape", CLASSES, part, part.take(torch.arange(CLASSES)))


# The study's loop -----------------------------------------------------------------------------------------------------


def study_training(
    network: str, parts: Parts, *, every: int, batch: int, hardware: HardwareConfig | None = None
) -> Training:
    """The study's own training with the paper's five averages; it never evaluates, which is timed by itself."""
    recipe = Recipe(
        data=DataConfig(dataset="cifar10", crop=CROP, flip=True),
        training=TrainingConfig(network=network, epochs=EPOCHS, warmup_epochs=5, batch=batch),  # type: ignore[arg-type]
        averages=AveragesConfig(decays=DECAYS, every=every, decay_warmup="steps"),
        hardware=hardware or HardwareConfig(device="cpu", threads=torch.get_num_threads()),
    )
    return Training(
        RunConfig(recipe=recipe, rate=0.1, seed=0, trained_on="100%"),
        replace(parts, validation=None),
        lambda: build_network(network, classes=parts.classes),
        device=torch.device("cpu"),
    )


def take_steps(training: Training, steps: int) -> None:
    """So many steps of the study's loop, which is asked to stop after them."""
    last = training.steps + steps
    with suppress(Interrupted):
        training.run(should_stop=lambda: training.steps >= last)
    if training.steps != last:
        raise RuntimeError(f"the run ended after {training.steps} steps of {last}; its time would mean nothing")


class UpdateTime:
    """Times the updates of a bank where they happen, right after an optimizer step: seconds since last cleared."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = self._began = 0.0
        self._clock = clock

    def clear(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def watching(self) -> Generator[None]:
        """A bank that is attached to an optimizer inside gets a hook before its own and one after it."""
        attach = EMABank.attach

        def attach_between(bank: EMABank, optimizer: Optimizer) -> RemovableHandle:
            optimizer.register_step_post_hook(self._begin)
            handle = attach(bank, optimizer)
            optimizer.register_step_post_hook(self._end)
            return handle

        with patch.object(EMABank, "attach", attach_between):
            yield

    def _begin(self, *hooked: object) -> None:
        self._began = self._clock()

    def _end(self, *hooked: object) -> None:
        self.seconds += self._clock() - self._began


# What people write by hand --------------------------------------------------------------------------------------------


class PlainLoop:
    """The network, the optimizer's settings, the memory order and the learning rates of a training, and no more of it.

    Args:
        like: a training that was just made, and that is not used otherwise.
        drawn: where the images come from; as often as they end, they are begun again.
    """

    def __init__(self, like: Training, drawn: Iterable[Batch]) -> None:
        self.model: nn.Module = like.model
        # An optimizer of its own: the training's moves the averages at each step.
        self._optimizer = SGD(self.model.parameters(), **like.optimizer.defaults)
        self._schedule, self._batches = like.schedule, endless(drawn)
        self._order = torch.channels_last if like.config.recipe.hardware.channels_last else torch.contiguous_format
        self._steps, self._loss = 0, 0.0

    def take_steps(self, steps: int) -> None:
        """So many steps; the next call goes on after them."""
        self.model.train()
        for inputs, labels in islice(self._batches, steps):
            inputs = inputs.contiguous(memory_format=self._order)
            for group in self._optimizer.param_groups:
                group["lr"] = self._schedule.rate(self._steps)
            loss = F.cross_entropy(self.model(inputs), labels)
            loss.backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
            self._loss += loss.item() * len(labels)
            self._steps += 1


class PlainImages(MapStyle[tuple[Tensor, int]]):
    """A map-style data set whose transforms meet one image at a time: reflection, crop, flip, normalisation.

    In plain torch, and on uint8 until the last of them, which is quicker than on PIL images.
    """

    def __init__(self, images: Images, normalisation: Normalisation) -> None:
        self._images, self._labels = images.images, images.labels.tolist()
        self._mean, self._std = (torch.tensor(v).view(-1, 1, 1) for v in (normalisation.mean, normalisation.std))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self._images[index]
        _, height, width = image.shape
        top, left = torch.randint(2 * CROP + 1, (2,)).tolist()
        image = F.pad(image, (CROP,) * 4, mode="reflect")[:, top : top + height, left : left + width]
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return (image.float() - self._mean) / self._std, self._labels[index]


def plain_batches(parts: Parts, *, batch: int, workers: int) -> DataLoader[Any]:
    """The DataLoader of the plain recipe; its workers stay for all epochs, so that no turn pays for their start."""
    dataset = PlainImages(parts.train, parts.normalisation)
    return DataLoader(dataset, batch_size=batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0)


def endless(drawn: Iterable[Batch]) -> Iterator[Batch]:
    """One epoch after the other."""
    while True:
        yield from drawn


# Contestants ----------------------------------------------------------------------------------------------------------


class Stopwatch:
    """A clock for an interleaved run that can be held, and to which seconds can be added that were taken elsewhere."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._added = clock, 0.0

    def __call__(self) -> float:
        return self._clock() + self._added

    def add(self, seconds: float) -> None:
        """Let these seconds count in the turn that is being timed."""
        self._added += seconds

    @contextmanager
    def held(self) -> Generator[None]:
        """What happens inside does not count."""
        begin = self._clock()
        try:
            yield
        finally:
            self.add(begin - self._clock())


def contestants(
    network: str, parts: Parts, size: Size, *, workers: Sequence[int], clock: Stopwatch, recalibrate: bool = False
) -> list[Contestant]:
    """Everybody: averages and what they cost, loops without averages, pipelines without training."""
    make = partial(study_training, network, parts, batch=size.batch)
    return [
        *_averages(make, parts, size, clock, recalibrate),
        *_loops(make, parts, size, workers),
        *_pipelines(make, parts, size, workers, clock),
    ]


def _turn(name: str, action: Callable[[], object]) -> Contestant:
    """A contestant that writes its own weights: nothing has to be written for it before its turn."""
    return Contestant(name, action, [torch.ones(1)])


def _averages(
    make: Callable[..., Training], parts: Parts, size: Size, clock: Stopwatch, recalibrate: bool
) -> list[Contestant]:
    """Steps with the study's loop, the updates within them, and what is done with the averages once an epoch."""
    sparse, spent = make(every=PERIOD), UpdateTime()
    with spent.watching():
        dense = make(every=1)
    model, bank = dense.model, dense.bank
    validation = _in_order(parts.validation, size.evaluated, parts.normalisation)
    train = _in_order(parts.train, size.recalibrated, parts.normalisation)

    def steps() -> None:
        spent.clear()
        take_steps(dense, size.steps)
        if not spent.seconds:
            raise RuntimeError("no update was seen in the study's loop; its time would mean nothing")

    def evaluate() -> None:
        predict_each(model, {LIVE: None} | {name: bank.functional(name) for name in bank.names}, validation)

    return [
        _turn(SPARSE, partial(take_steps, sparse, size.steps)),
        _turn(DENSE, steps),
        # Those of that loop's latest turn, which was in this round or in the one before.
        _turn(UPDATES, lambda: clock.add(spent.seconds)),
        _turn(ALL, evaluate),
        _turn(ALONE, lambda: predict_each(model, {LIVE: None}, validation)),
        *([_turn(RECALIBRATION, lambda: recalibrate_batchnorm(bank, train))] if recalibrate else []),
    ]


def _in_order(part: Images | None, count: int, normalisation: Normalisation) -> Iterable[Batch]:
    if part is None:
        raise ValueError("there is no validation part to evaluate on; give parts that hold one back")
    return batches(part.take(torch.arange(count)), size=evaluation_batch(part), normalisation=normalisation)


def _loops(make: Callable[..., Training], parts: Parts, size: Size, workers: Sequence[int]) -> list[Contestant]:
    """Steps without averages: with the study's loader, and with the plain recipe's."""
    like = make(every=1)
    loops = {BARE: PlainLoop(like, like.loader)}
    for count in workers:
        drawn = plain_batches(parts, batch=size.batch, workers=count)
        loops[RECIPE.format(count)] = PlainLoop(make(every=1), drawn)
    return [_turn(name, partial(loop.take_steps, size.steps)) for name, loop in loops.items()]


def _pipelines(
    make: Callable[..., Training], parts: Parts, size: Size, workers: Sequence[int], clock: Stopwatch
) -> list[Contestant]:
    """Batches that nobody trains on."""
    found = [_turn(LOADER, partial(_draw, endless(make(every=1).loader), 0, clock))]
    for count in workers:
        plain = plain_batches(parts, batch=size.batch, workers=count)
        ready = count * (plain.prefetch_factor or 0)
        found.append(_turn(DATALOADER.format(count), partial(_draw, endless(plain), ready, clock)))
    return found


def _draw(drawn: Iterator[Batch], ready: int, clock: Stopwatch) -> None:
    with clock.held():  # batches that workers made before the turn; a pipeline that never rests has none
        _exhaust(islice(drawn, ready))
    _exhaust(islice(drawn, DRAWN))


def _exhaust(drawn: Iterable[Batch]) -> None:
    for _ in drawn:
        pass
