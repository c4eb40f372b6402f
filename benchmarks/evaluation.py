"""Times the evaluation and recalibration of many averages in one pass; also how many samples a recalibration needs.

Run `python benchmarks/evaluation.py --help`; benchmarks/README.md explains the numbers.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `python benchmarks/evaluation.py`

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset, default_collate

from benchmarks.harness import (
    Case,
    count_of,
    make_case,
    make_parser,
    run_interleaved,
    show_cases,
    start,
    text_table,
    write_result,
)
from benchmarks.peers import decays
from emabank import EMA, EMABank, recalibrate_batchnorm
from emabank.study.bench import Contestant, spread
from emabank.study.config import DataConfig, HardwareConfig, Recipe, RunConfig, TrainingConfig
from emabank.study.data.datasets import load_dataset
from emabank.study.data.images import Images, make_images, normalisation_of
from emabank.study.data.loader import Loader, batches
from emabank.study.data.splits import Parts, make_parts, seeded_generator
from emabank.study.executors.worker import keep_freed_memory
from emabank.study.metrics import accuracy
from emabank.study.models import build_network
from emabank.study.predict import predict_each
from emabank.study.run_job import network_of
from emabank.study.train import Training

SHARED, COPIES, SECOND = "one shared pass", "each alone, module copies", "each alone, copied into a second model"
APPLIED, UPDATE_BN = "each alone, bank.applied()", "each alone, torch's update_bn"
NETWORK, AVERAGES, BATCH = "resnet8", 5, 128
TOLERANCE = 1e-3
SOURCES = {"memory": "batches in memory", "loader": "DataLoader, 2 workers"}

Batches = Iterable[tuple[Tensor, Tensor]]
Curve = dict[str, Any]
Ways = Mapping[str, Callable[[], list[Tensor]]]
"""Ways to do a task, by name; each returns a tensor per set of weights."""


# One pass, or one per average -----------------------------------------------------------------------------------------


def make_bank() -> EMABank:
    """A bank of a random network, whose averages all differ."""
    torch.manual_seed(0)
    model = build_network(NETWORK, classes=10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    bank = EMABank(model, [EMA(decay, warmup=None) for decay in decays(AVERAGES)], every=1)
    for _ in range(4):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter) * parameter.abs().mean()
            model(torch.randn(8, 3, 32, 32))  # moves the batch-norm statistics
        bank.update()
    return bank


class _Normalised(TensorDataset):
    """Images that are normalised one by one, when they are read."""

    def __init__(self, images: Images) -> None:
        super().__init__(images.images, images.labels)
        normalisation = normalisation_of(images)
        self._mean, self._std = (torch.tensor(v).view(-1, 1, 1) for v in (normalisation.mean, normalisation.std))

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        image, label = super().__getitem__(index)
        return (image.float() - self._mean) / self._std, label


def random_images(count: int) -> Images:
    """Images of CIFAR's shape with random pixels; a pass takes as long as with real ones."""
    pixels = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return make_images(pixels, torch.arange(count) % 10)


def make_batches(images: Images, source: str) -> Batches:
    """Batches sliced out of memory, or from a DataLoader whose workers stay alive between passes."""
    if source == "memory":
        order = torch.channels_last
        return batches(images, size=BATCH, normalisation=normalisation_of(images), memory_format=order)
    return DataLoader(_Normalised(images), BATCH, collate_fn=_channels_last, num_workers=2, persistent_workers=True)


def _channels_last(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    inputs, labels = default_collate(items)
    return inputs.contiguous(memory_format=torch.channels_last), labels


def evaluations(bank: EMABank, data: Batches) -> Ways:
    """Logits of the live weights and every average: in one pass, as in the study, and in the usual loops."""
    model, second = bank.model, bank.module(bank.names[0])
    copies = [bank.module(name) for name in bank.names]

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

    return {
        SHARED: shared,
        COPIES: lambda: [logits(module) for module in (model, *copies)],
        SECOND: lambda: [logits(model), *map(copied, bank.names)],
        APPLIED: lambda: [logits(model), *map(applied, bank.names)],
    }


def recalibrations(bank: EMABank, data: Batches) -> Ways:
    """Batch-norm statistics of every average: in one pass, and with a pass of torch's `update_bn` for each.

    Only the means are compared: `update_bn` averages the variances of batches, which is not the variance of the data.
    """
    copies = [bank.module(name) for name in bank.names]

    def means(state: dict[str, Tensor]) -> Tensor:
        return torch.cat([state[key] for key in state if key.endswith("running_mean")])

    def shared() -> list[Tensor]:
        recalibrate_batchnorm(bank, data)
        return [means(bank.weights(name, batchnorm="recomputed")) for name in bank.names]

    def alone() -> list[Tensor]:
        for copy in copies:
            update_bn(data, copy)
        return [means(copy.state_dict()) for copy in copies]

    return {SHARED: shared, UPDATE_BN: alone}


TASKS = {"evaluation": evaluations, "recalibration": recalibrations}


def check_same(ways: Ways) -> None:
    """Raise unless all ways give the same results, and these differ between sets of weights, so a mix-up would show."""

    def differ(one: Tensor, other: Tensor) -> bool:
        scale = other.square().mean(-1, keepdim=True).sqrt()
        return one.shape != other.shape or not bool(((one - other).abs() <= TOLERANCE * scale).all())

    reference = ways[SHARED]()
    if not all(differ(one, other) for one, other in pairwise(reference)):
        raise RuntimeError("two sets of weights give the same results, so a mix-up would not show")
    for name, way in ways.items():
        results = way()
        if len(results) != len(reference) or any(map(differ, results, reference)):
            raise RuntimeError(f"{name} gives other results than {SHARED}")


def measure_passes(task: str, source: str, *, images: int, seconds: float) -> Case:
    """Time one shared pass and all other ways, after checking that their results agree."""
    ways = TASKS[task](make_bank(), make_batches(random_images(images), source))
    check_same(ways)
    threads = count_of(torch.get_num_threads(), "thread")
    title = f"{task} of {NETWORK}, {AVERAGES} averages, {images} images, {SOURCES[source]}, {threads}"
    contestants = [Contestant(name, way, [torch.ones(1)]) for name, way in ways.items()]
    run = run_interleaved(contestants, seconds=seconds, title=title)
    del contestants, ways
    gc.collect()  # ends the workers of the DataLoader
    about = {"task": task, "model": NETWORK, "averages": AVERAGES, "source": SOURCES[source], "threads": threads}
    better = {name: "higher" for name in run.times if name != SHARED}
    return make_case(title, [run], over=(SHARED,), better=better, about=about)


# How many samples a recalibration needs -------------------------------------------------------------------------------

SIZES = tuple(32 * 2**k for k in range(9))  # 32 to 8,192
WITHIN = 0.001  # of accuracy: 0.1 points
DRAWS = 4  # per number of images


def train(dataset_name: str, folder: Path, epochs: int) -> tuple[Parts, DataConfig, dict[tuple[str, str], nn.Module]]:
    """Train a network, and also return its two slowest averages, early and at the end, by stage and name."""
    recipe = Recipe(
        data=DataConfig(dataset=dataset_name, subset=10_000 if dataset_name == "cifar10" else None),  # type: ignore[arg-type]
        training=TrainingConfig(network=NETWORK, epochs=epochs),
        hardware=HardwareConfig(device="cpu"),
    )
    dataset = load_dataset(recipe.data, folder)
    config = RunConfig(recipe=recipe, rate=0.4, seed=0, trained_on="100%")
    parts = make_parts(recipe.data, dataset, config.trained_on)
    models: dict[tuple[str, str], nn.Module] = {}

    def observe(training: Training) -> None:
        if training.epoch in (max(1, epochs // 8), epochs):
            for name in training.bank.names[-2:]:
                models[f"epoch {training.epoch} of {epochs}", name] = training.bank.module(name)

    training = Training(config, parts, network_of(config, dataset), device=torch.device("cpu"))
    training.run(observe=observe)
    return parts, config.recipe.data, models


def measure_samples(parts: Parts, data: DataConfig, models: Mapping[tuple[str, str], nn.Module]) -> list[Curve]:
    """A curve per average, without and with augmentation: accuracy after recalibrating on n training images."""
    known: dict[str, Any] = {"normalisation": parts.normalisation, "memory_format": torch.channels_last}
    total, labels = len(parts.train), parts.test.labels.numpy()

    def score(model: nn.Module) -> float:
        return accuracy(predict_each(model, {"live": None}, batches(parts.test, size=BATCH, **known))["live"], labels)

    def recalibrated(model: nn.Module, images: int, draw: int, augmented: bool) -> float:
        generator = seeded_generator(f"recalibration on {images}", draw)
        part = parts.train if images == total else parts.train.take(torch.randperm(total, generator=generator)[:images])
        size = min(BATCH, images)
        augment = {"crop": data.crop or 0, "flip": bool(data.flip), "seed": draw}
        recalibrate_batchnorm(
            model, Loader(part, size=size, **augment, **known) if augmented else batches(part, size=size, **known)
        )
        return score(model)

    curves: list[Curve] = []
    for (stage, weights), model in models.items():
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        own = score(model)  # with the averaged statistics, before the first recalibration
        full = recalibrated(model, total, 0, False)
        about = {"stage": stage, "weights": weights, "accuracy": full, "without": own - full}
        about["standard_error"] = math.sqrt(full * (1 - full) / len(labels))
        for augmented in (False, True) if data.crop or data.flip else (False,):
            points: list[dict[str, Any]] = []
            for images in [size for size in SIZES if size < total]:
                differences = [recalibrated(model, images, draw, augmented) - full for draw in range(DRAWS)]
                points.append({"images": images, "worst": min(differences), "accuracy": spread(differences)})
            curves.append({**about, "augmented": augmented, "points": points})
            print(curve_text(curves[-1]), end="\n\n", flush=True)
    return curves


def enough(curves: Sequence[Curve]) -> int | None:
    """The smallest number of images from which on every average is as good as with all images; None if all are needed.

    As good means: the mean over draws is at most 0.1 points lower, and no draw is more than a standard error lower.
    """
    good: dict[int, bool] = {}
    for curve in curves:
        for point in curve["points"]:
            fine = point["accuracy"].mean >= -WITHIN and point["worst"] >= -curve["standard_error"]
            good[point["images"]] = good.get(point["images"], True) and fine
    sizes = sorted(good)
    return next((size for size in sizes if all(good[larger] for larger in sizes if larger >= size)), None)


def curve_text(curve: Curve) -> str:
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


def main(words: Sequence[str] | None = None) -> int:
    parser = make_parser(
        "Time the evaluation of live weights and five averages, and the recalibration of their batch norm, in one "
        "shared pass over the data and in one pass each. With --samples: how many images a recalibration needs.",
        "Default: about 10 minutes. --samples trains a ResNet-8 on 10,000 images of CIFAR-10 first: 15 minutes.",
        seconds=60,
        result="evaluation.json",
    )
    add = parser.add_argument
    add("--sources", nargs="+", default=list(SOURCES), choices=list(SOURCES), help="of batches (default: both)")
    add("--images", type=int, default=1024, help="images per pass (%(default)s)")
    add("--samples", action="store_true", help="measure how many images a recalibration needs, in place of times")
    add("--dataset", default="cifar10", choices=["cifar10", "digits"], help="for --samples (%(default)s)")
    add("--data", type=Path, default=Path("data"), metavar="DIR", help="for --samples: has CIFAR-10 (%(default)s)")
    add("--epochs", type=int, default=16, help="for --samples (%(default)s)")
    arguments = parser.parse_args(words)
    if not arguments.samples:
        arguments.threads = arguments.threads or 1  # as in the study
    known = start(arguments, memory="kept by the process" if keep_freed_memory() else "returned by malloc")
    if arguments.samples:
        main_samples(arguments, known)
        return 0
    cases = (
        measure_passes(task, source, images=arguments.images, seconds=arguments.seconds)
        for task, source in product(TASKS, arguments.sources)
    )
    write_result(arguments, known, show_cases(cases))
    return 0


def main_samples(arguments: argparse.Namespace, known: dict[str, Any]) -> None:
    """Measure, print and write how many images a recalibration needs."""
    parts, data, models = train(arguments.dataset, arguments.data, arguments.epochs)
    curves = measure_samples(parts, data, models)
    few = {a: enough([c for c in curves if c["augmented"] is a]) for a in sorted({c["augmented"] for c in curves})}
    for augmented, size in few.items():
        print(f"{'with' if augmented else 'without'} augmentation, enough: {size or 'all images'}")
    known |= {"data": arguments.dataset, "images": len(parts.train), "test_images": len(parts.test)}
    write_result(arguments, known, curves=curves, enough=list(few.items()))


if __name__ == "__main__":
    sys.exit(main())
