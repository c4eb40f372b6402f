"""Many averages evaluated and recalibrated in one pass over the data; and how many samples a recalibration needs.

Run `python benchmarks/evaluation.py --help`; benchmarks/README.md explains the numbers.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Literal, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `python benchmarks/evaluation.py`

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, Dataset, default_collate

from benchmarks.harness import (
    Case,
    case_text,
    count_of,
    make_case,
    make_parser,
    run_interleaved,
    show_progress,
    start,
    text_table,
    write_result,
)
from benchmarks.peers import decays
from emabank import EMA, EMABank, recalibrate_batchnorm
from emabank.study.bench import Contestant, spread
from emabank.study.config import DataConfig, HardwareConfig, Recipe, RunConfig, TrainingConfig
from emabank.study.data.datasets import load_dataset, load_parts
from emabank.study.data.images import Images, make_images, normalisation_of
from emabank.study.data.loader import Loader, batches
from emabank.study.data.splits import Parts, seeded_generator
from emabank.study.executors.worker import keep_freed_memory
from emabank.study.metrics import accuracy
from emabank.study.models import NETWORKS, build_network
from emabank.study.predict import predict, predict_each
from emabank.study.run_job import network_of
from emabank.study.train import Training

SHARED, COPIES, SECOND = "one shared pass", "each alone, module copies", "each alone, copied into a second model"
APPLIED, UPDATE_BN = "each alone, bank.applied()", "each alone, torch's update_bn"
TASKS = ("evaluation", "recalibration")
BATCH = 128
TOLERANCE = 1e-3

Batches = Iterable[tuple[Tensor, Tensor]]


class Way(NamedTuple):
    """One way to do a task: what is timed, and how to see its results, a tensor per set of weights."""

    run: Callable[[], object]
    results: Callable[[], list[Tensor]]


# One pass, or one per average -----------------------------------------------------------------------------------------


class Subject(NamedTuple):
    """A model in training, its bank, and a module per average, as libraries that keep deep copies have."""

    model: nn.Module
    bank: EMABank
    copies: list[nn.Module]


def make_subject(network: str, averages: int) -> Subject:
    """A network with random weights, and averages that all differ."""
    torch.manual_seed(0)
    model = build_network(network, classes=10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    bank = EMABank(model, [EMA(decay, warmup=None) for decay in decays(averages)], every=1)
    for _ in range(4):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter) * parameter.abs().mean()
            model(torch.randn(8, 3, 32, 32))  # moves the batch-norm statistics
        bank.update()
    return Subject(model, bank, [bank.module(name) for name in bank.names])


class _Normalised(Dataset[tuple[Tensor, int]]):
    """A data set that normalises one image at a time."""

    def __init__(self, images: Images) -> None:
        normalisation = normalisation_of(images)
        self._images, self._labels = images.images, images.labels.tolist()
        self._mean, self._std = (torch.tensor(v).view(-1, 1, 1) for v in (normalisation.mean, normalisation.std))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return (self._images[index].float() - self._mean) / self._std, self._labels[index]


def random_images(count: int) -> Images:
    """Images of CIFAR's shape with random pixels; a pass takes as long as with real ones."""
    pixels = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return make_images(pixels, torch.arange(count) % 10)


def make_batches(images: Images, workers: int | None) -> Batches:
    """Batches sliced out of memory, or from a DataLoader whose workers stay alive between passes."""
    if workers is None:
        order = torch.channels_last
        return batches(images, size=BATCH, normalisation=normalisation_of(images), memory_format=order)
    return DataLoader(
        _Normalised(images), BATCH, collate_fn=_channels_last, num_workers=workers, persistent_workers=workers > 0
    )


def _channels_last(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    inputs, labels = default_collate(items)
    return inputs.contiguous(memory_format=torch.channels_last), labels


def evaluations(subject: Subject, data: Batches) -> dict[str, Way]:
    """Logits of the live weights and of every average: in one pass, as the study does it, and as people write it."""
    model, bank, copies = subject
    second = bank.module(bank.names[0])

    def logits(model: nn.Module) -> Tensor:
        model.eval()
        with torch.no_grad():
            outputs = torch.cat([model(inputs) for inputs, _ in data])
        model.train()
        return outputs

    def shared() -> list[Tensor]:
        weights = {"live": None, **{name: bank.functional(name) for name in bank.names}}
        return [torch.from_numpy(outputs) for outputs in predict_each(model, weights, data).values()]

    def copied(name: str) -> Tensor:
        bank.copy_to(second, name)
        return logits(second)

    def applied(name: str) -> Tensor:
        with bank.applied(name):
            return logits(model)

    actions = {
        SHARED: shared,
        COPIES: lambda: [logits(module) for module in (model, *copies)],
        SECOND: lambda: [logits(model), *map(copied, bank.names)],
        APPLIED: lambda: [logits(model), *map(applied, bank.names)],
    }
    return {name: Way(action, action) for name, action in actions.items()}


def recalibrations(subject: Subject, data: Batches) -> dict[str, Way]:
    """Batch-norm statistics of every average: in one pass, and with a pass of torch's `update_bn` for each.

    The results are means alone: `update_bn` averages the variances of batches, which is not the variance of the data.
    """
    _, bank, copies = subject

    def means(state: dict[str, Tensor]) -> Tensor:
        return torch.cat([state[key] for key in state if key.endswith("running_mean")])

    def alone() -> None:
        for copy in copies:
            update_bn(data, copy)

    def shared_means() -> list[Tensor]:
        recalibrate_batchnorm(bank, data)
        return [means(bank.weights(name, batchnorm="recomputed")) for name in bank.names]

    def means_alone() -> list[Tensor]:
        alone()
        return [means(copy.state_dict()) for copy in copies]

    return {SHARED: Way(lambda: recalibrate_batchnorm(bank, data), shared_means), UPDATE_BN: Way(alone, means_alone)}


def check_same(ways: dict[str, Way]) -> None:
    """Raise unless all ways give the same, and the sets of weights differ, so that a mix-up would show."""

    def differ(one: Tensor, other: Tensor) -> bool:
        scale = other.square().mean(-1, keepdim=True).sqrt()
        return one.shape != other.shape or not bool(((one - other).abs() <= TOLERANCE * scale).all())

    reference = ways[SHARED].results()
    if not all(differ(one, other) for one, other in pairwise(reference)):
        raise RuntimeError("two sets of weights give the same results, so a mix-up would not show")
    for name, way in ways.items():
        results = way.results()
        if len(results) != len(reference) or any(map(differ, results, reference)):
            raise RuntimeError(f"{name} gives other results than {SHARED}")


def measure_passes(
    task: Literal["evaluation", "recalibration"], network: str, workers: int | None, arguments: argparse.Namespace
) -> Case:
    """Time one shared pass and all other ways, after a check that all give the same."""
    subject = make_subject(network, arguments.averages)
    data = make_batches(random_images(arguments.images), workers)
    ways = (evaluations if task == "evaluation" else recalibrations)(subject, data)
    check_same(ways)
    source = "batches in memory" if workers is None else f"DataLoader, {count_of(workers, 'worker')}"
    averages = count_of(arguments.averages, "average")
    threads = count_of(torch.get_num_threads(), "thread")
    title = f"{task} of {network}, {averages}, {arguments.images} images, {source}, {threads}"
    contestants = [Contestant(name, way.run, [torch.ones(1)]) for name, way in ways.items()]
    run = run_interleaved(contestants, seconds=arguments.seconds, progress=show_progress(title))
    del contestants, ways, data
    gc.collect()  # ends the workers
    about = {"task": task, "model": network, "averages": arguments.averages, "source": source, "threads": threads}
    better = {name: "higher" for name in run.times if name != SHARED}
    return make_case(title, [run], over=(SHARED,), better=better, about=about)  # type: ignore[arg-type]


# How many samples a recalibration needs -------------------------------------------------------------------------------

SIZES = tuple(32 * 2**k for k in range(9))  # 32 to 8,192
WITHIN = 0.001  # of accuracy: 0.1 points


def train(arguments: argparse.Namespace) -> tuple[Parts, DataConfig, dict[tuple[str, str], nn.Module]]:
    """Train a network; its slowest averages early and at the end, by stage and name."""
    recipe = Recipe(
        data=DataConfig(dataset=arguments.dataset, subset=arguments.subset),
        training=TrainingConfig(network="resnet8", epochs=arguments.epochs),
        hardware=HardwareConfig(device="cpu"),
    )
    dataset = load_dataset(recipe.data, arguments.data)
    config = RunConfig(recipe=recipe, rate=0.4, seed=0, trained_on="100%")
    parts = load_parts(recipe.data, dataset, config.trained_on)
    models: dict[tuple[str, str], nn.Module] = {}

    def observe(training: Training) -> None:
        if training.epoch in (arguments.early, arguments.epochs):
            for name in training.bank.names[-2:]:
                models[f"epoch {training.epoch} of {arguments.epochs}", name] = training.bank.module(name)

    training = Training(config, parts, network_of(config, dataset), device=torch.device("cpu"))
    training.run(observe=observe)
    return parts, config.recipe.data, models


def measure_samples(
    parts: Parts, data: DataConfig, models: dict[tuple[str, str], nn.Module], draws: int
) -> list[dict[str, Any]]:
    """A curve per average, without and with augmentation: accuracy after recalibrating on n training images."""
    known: dict[str, Any] = {"normalisation": parts.normalisation, "memory_format": torch.channels_last}
    total, labels = len(parts.train), parts.test.labels.numpy()

    def score(model: nn.Module, images: int, draw: int, augmented: bool) -> float:
        if images:
            generator = seeded_generator(f"recalibration on {images}", draw)
            part = (
                parts.train.take(torch.randperm(total, generator=generator)[:images]) if images < total else parts.train
            )
            size = min(BATCH, images)
            plain = batches(part, size=size, **known)
            augment = Loader(part, size=size, crop=data.crop or 0, flip=bool(data.flip), seed=draw, **known)
            recalibrate_batchnorm(model, augment if augmented else plain)
        return accuracy(predict(model, batches(parts.test, size=BATCH, **known)), labels)

    curves: list[dict[str, Any]] = []
    for (stage, weights), model in models.items():
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        own = score(model, 0, 0, False)  # with the averaged statistics, before the first recalibration
        full = score(model, total, 0, False)
        for augmented in (False, True) if data.crop or data.flip else (False,):
            points: list[dict[str, Any]] = []
            for images in [size for size in SIZES if size < total]:
                differences = [score(model, images, draw, augmented) - full for draw in range(draws)]
                points.append({"images": images, "worst": min(differences), "accuracy": spread(differences)})
            error = math.sqrt(full * (1 - full) / len(labels))
            curves.append(
                {
                    "stage": stage,
                    "weights": weights,
                    "augmented": augmented,
                    "accuracy": full,
                    "standard_error": error,
                    "without": own - full,
                    "points": points,
                }
            )
            print(curve_text(curves[-1]), end="\n\n", flush=True)
    return curves


def enough(curves: Sequence[dict[str, Any]]) -> int | None:
    """The fewest images from which on every average is as good as with all of them; None if all are needed.

    As good: the mean over draws is at most 0.1 points lower, and no draw is lower by more than a standard error.
    """
    good: dict[int, bool] = {}
    for curve in curves:
        for point in curve["points"]:
            fine = point["accuracy"].mean >= -WITHIN and point["worst"] >= -curve["standard_error"]
            good[point["images"]] = good.get(point["images"], True) and fine
    sizes = sorted(good)
    return next((size for size in sizes if all(good[larger] for larger in sizes if larger >= size)), None)


def curve_text(curve: dict[str, Any]) -> str:
    """One curve as a table."""
    augmented = "with" if curve["augmented"] else "without"
    heading = (
        f"{curve['weights']}, {curve['stage']}, {augmented} augmentation: accuracy {curve['accuracy']:.2%} with all "
        f"images; {100 * curve['without']:+.2f} points without recalibration"
    )
    rows = (
        [f"{point['images']:,}", f"{100 * point['accuracy'].mean:+.2f}", f"{100 * point['worst']:+.2f}"]
        for point in curve["points"]
    )
    return heading + "\n" + text_table(["images", "points: mean", "worst"], rows)


# The script -----------------------------------------------------------------------------------------------------------


def parse_source(text: str) -> int | None:
    """`memory`, or the number of a DataLoader's workers."""
    if text != "memory" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"source must be memory or a number of workers; got {text}")
    return None if text == "memory" else int(text)


def main(words: Sequence[str] | None = None) -> int:
    parser = make_parser(
        "Time the evaluation of live weights and M averages, and the recalibration of their batch norm, in one shared "
        "pass over the data and in one pass each. With --samples: how many images a recalibration needs.",
        "Default: about 10 minutes. --samples trains a ResNet-8 on 10,000 images of CIFAR-10 first: 15 minutes.",
        seconds=60,
        result="evaluation.json",
    )
    add = parser.add_argument
    add("--networks", nargs="+", default=["resnet8"], choices=list(NETWORKS), metavar="NETWORK",
        help=f"of {', '.join(NETWORKS)} (default: resnet8)")  # fmt: skip
    add("--tasks", nargs="+", default=TASKS, choices=TASKS, help="(default: both)")
    add("--sources", nargs="+", type=parse_source, default=[None, 2], metavar="SOURCE",
        help="of batches: memory, or the number of a DataLoader's workers (memory 2)")  # fmt: skip
    add("--averages", type=int, default=5, metavar="M", help="how many averages (5)")
    add("--images", type=int, default=1024, help="images per pass (%(default)s)")
    add("--samples", action="store_true", help="measure how many images a recalibration needs, in place of times")
    add("--data", type=Path, default=Path("data"), metavar="DIR", help="for --samples: has CIFAR-10 (%(default)s)")
    add("--dataset", default="cifar10", choices=["cifar10", "digits"], help="for --samples (%(default)s)")
    add("--subset", type=int, default=10_000, help="for --samples: training images (%(default)s)")
    add("--epochs", type=int, default=16, help="for --samples (%(default)s)")
    add("--early", type=int, default=2, help="for --samples: the early epoch (%(default)s)")
    add("--draws", type=int, default=4, help="for --samples: draws per number of images (%(default)s)")
    arguments = parser.parse_args(words)
    if not arguments.samples:
        arguments.threads = arguments.threads or 1  # as in the study
    known = start(arguments, memory="kept by the process" if keep_freed_memory() else "returned by malloc")
    if arguments.samples:
        parts, data, models = train(arguments)
        curves = measure_samples(parts, data, models, arguments.draws)
        known |= {"data": arguments.dataset, "images": len(parts.train), "test_images": len(parts.test)}
        few = {a: enough([c for c in curves if c["augmented"] is a]) for a in sorted({c["augmented"] for c in curves})}
        for augmented, size in few.items():
            print(f"{'with' if augmented else 'without'} augmentation, enough: {size or 'all images'}")
        if arguments.json:
            write_result(arguments.json, known, curves=curves, enough=[[a, size] for a, size in few.items()])
        return 0
    cases: list[Case] = []
    for network, task, workers in product(arguments.networks, arguments.tasks, arguments.sources):
        cases.append(measure_passes(task, network, workers, arguments))
        print(case_text(cases[-1]), end="\n\n", flush=True)
    if arguments.json:
        write_result(arguments.json, known, cases, add=arguments.add)
    return 0


if __name__ == "__main__":
    sys.exit(main())
