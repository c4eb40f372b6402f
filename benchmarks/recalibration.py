"""How few images the recalibration of batch norm needs: accuracy on test images against the number of images it saw.

Run `python benchmarks/recalibration.py --help`; benchmarks/README.md says what each number means.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from enough import Score, Setting, curve_table, curves_of, enough, enough_text, judge
from rich.console import Console
from torch import Tensor, nn

from emabank import recalibrate_batchnorm
from emabank.bench.kept import keep_result
from emabank.bench.machine import conditions
from emabank.bench.tables import facts
from emabank.study.allocation import keep_memory
from emabank.study.carry_out import Job, StopRequest, carry_out, network_of
from emabank.study.config import RunConfig
from emabank.study.data.images import Dataset, Images, fingerprint
from emabank.study.data.loader import Loader, batches
from emabank.study.data.splits import Parts, seeded_generator
from emabank.study.datasets import load_dataset, load_parts
from emabank.study.metrics.accuracy import accuracy, loss
from emabank.study.models.catalogue import build_network
from emabank.study.place import Place
from emabank.study.plain import from_plain
from emabank.study.predict import predict
from emabank.study.progress import counting, progress
from emabank.study.recipe import DataConfig, HardwareConfig, Recipe, TrainingConfig
from emabank.study.runs.folder import RunFolder
from emabank.study.train import LIVE, Interrupted, Training

SIZES = tuple(32 * 2**k for k in range(9))  # 32 to 8192
MANY = 2048  # beyond it a draw takes long and differs little from the next, so half as many are made
BATCH = 128


class Subject(NamedTuple):
    """One average at one moment of a training, as a model of its own, with averaged statistics or recomputed ones."""

    stage: str
    weights: str
    model: nn.Module
    averaged: bool = True


class Source(NamedTuple):
    """Where averages come from: the name of a run, its data, and the averages themselves."""

    run: str
    data: DataConfig
    parts: Parts
    subjects: list[Subject]


# Where averages come from ---------------------------------------------------------------------------------------------


def run_config(asked: argparse.Namespace, dataset: Dataset) -> RunConfig:
    """The run that is trained where none is given."""
    recipe = Recipe(
        data=DataConfig(dataset=asked.dataset, subset=asked.subset),
        training=TrainingConfig(network=asked.network, epochs=asked.epochs),
        hardware=HardwareConfig(device="cpu", threads=asked.threads),
    )
    return RunConfig(recipe=recipe, rate=asked.rate, seed=0, trained_on="100%", fingerprint=fingerprint(dataset))


def trained(asked: argparse.Namespace, console: Console) -> Source:
    """The slowest averages early in a training and at its end, which goes on where it was interrupted."""
    if not 1 <= asked.early < asked.epochs:
        raise ValueError(f"--early is {asked.early}; give an epoch from 1 on, before the last of {asked.epochs}")
    dataset = load_dataset(DataConfig(dataset=asked.dataset), asked.data)
    config = run_config(asked, dataset)
    with StopRequest() as request, progress(console, asked.epochs) as tell:
        run = carry_out(
            Job(config, forks=(asked.early, asked.epochs)),
            Place(data=asked.data, runs=asked.work),
            dataset,
            tell=tell,
            should_stop=lambda: request.received,
        )
    parts = load_parts(replace(config.recipe.data, test_subset=asked.test), dataset, config.trained_on)
    subjects: list[Subject] = []
    for epoch in (asked.early, asked.epochs):
        training = Training(config, parts, network_of(config, dataset), device=torch.device("cpu"))
        training.load_state_dict(run.load_fork(epoch))
        for name in training.bank.names[-asked.averages :]:
            subjects.append(Subject(f"epoch {epoch} of {asked.epochs}", name, training.bank.module(name)))
    return Source(run.id, config.recipe.data, parts, subjects)


def of_run(asked: argparse.Namespace) -> Source:
    """The averages that a finished run has kept; nothing is written to its folder."""
    run = RunFolder(asked.run)
    if not run.is_done():
        raise ValueError(f"{asked.run} is no finished run; give the folder of one, with its snapshots")
    config = run.config()
    data = from_plain(DataConfig, config["recipe"]["data"], where=f"{asked.run}")
    training = from_plain(TrainingConfig, config["recipe"]["training"], where=f"{asked.run}")
    dataset = load_dataset(data, asked.data)
    if fingerprint(dataset) != config["fingerprint"]:
        raise ValueError(f"{asked.run} was trained on other data than {asked.data} holds; give the folder of its data")
    parts = load_parts(replace(data, test_subset=asked.test), dataset, config["trained_on"])
    found: dict[tuple[str, str], Subject] = {}
    channels = dataset.train.images.shape[1]
    for name in run.snapshots():
        tensors, about = run.load_snapshot(name)
        if about["weights"] != LIVE:
            model = build_network(training.network, classes=dataset.classes, channels=channels, width=training.width)
            model.load_state_dict(tensors)
            stage, averaged = f"epoch {about['epoch']} of {training.epochs}", about["batchnorm"] == "averaged"
            found.setdefault((stage, about["weights"]), Subject(stage, about["weights"], model, averaged))
    if not found:
        raise ValueError(f"{asked.run} has kept no average; give a run that has")
    return Source(run.id, data.completed(), parts, list(found.values()))


# Measuring ------------------------------------------------------------------------------------------------------------


def settings_of(subject: Subject, *, total: int, draws: int, augment: bool) -> Iterator[Setting]:
    """All that is measured of one average: its own statistics, those of all images, and those of fewer and fewer."""
    if subject.averaged:  # before the first recalibration, which overwrites them
        yield Setting(subject.stage, subject.weights, False, 0, 0)
    for augmented in (False, True) if augment else (False,):
        yield from (Setting(subject.stage, subject.weights, augmented, total, draw) for draw in range(1 + augmented))
        for size in [size for size in SIZES if size < total]:
            for draw in range(draws if size <= MANY and not augmented else -(-draws // 2)):
                yield Setting(subject.stage, subject.weights, augmented, size, draw)


def images_of(setting: Setting, train: Images) -> Images:
    """A random draw of the training images, the same whether they are augmented or not; all of them in their order."""
    if setting.images >= len(train):
        return train
    generator = seeded_generator(f"recalibration on {setting.images}", setting.draw)
    return train.take(torch.randperm(len(train), generator=generator)[: setting.images])


def batches_of(setting: Setting, parts: Parts, data: DataConfig) -> Iterable[tuple[Tensor, Tensor]]:
    """The batches that a recalibration sees: of 128 images, or all at once where there are fewer."""
    part, size = images_of(setting, parts.train), min(BATCH, setting.images)
    known: dict[str, Any] = {"normalisation": parts.normalisation, "memory_format": torch.channels_last}
    if not setting.augmented:
        return batches(part, size=size, **known)
    return Loader(part, size=size, crop=data.crop or 0, flip=bool(data.flip), seed=setting.draw, **known)


def measure(setting: Setting, model: nn.Module, parts: Parts, data: DataConfig) -> Score:
    """Recalibrate the model, in place, and see what it says of the test images; forward passes alone."""
    if setting.images:
        recalibrate_batchnorm(model, batches_of(setting, parts, data))
    test = batches(parts.test, size=BATCH, normalisation=parts.normalisation, memory_format=torch.channels_last)
    logits, labels = predict(model, test), parts.test.labels.numpy()
    return Score(accuracy(logits, labels), loss(logits, labels))


class Points:
    """What was measured so far, a line for each, so that an interrupted run goes on after the last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: dict[Setting, Score] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines:
            try:
                setting, score = json.loads(line)
                self.found[Setting(*setting)] = Score(*score)
            except (ValueError, TypeError):  # cut short by a kill, which may have been before this one
                continue

    def add(self, setting: Setting, score: Score) -> None:
        """Keep one more."""
        self.found[setting] = score
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps([list(setting), list(score)]))


def measure_all(source: Source, points: Points, *, draws: int, augment: bool, console: Console) -> dict[Setting, Score]:
    """All settings of all averages, those that are known already not again."""
    parts, data = source.parts, source.data
    augment = augment and bool(data.crop or data.flip)
    planned = [
        (setting, subject.model.to(memory_format=torch.channels_last))
        for subject in source.subjects
        for setting in settings_of(subject, total=len(parts.train), draws=draws, augment=augment)
    ]
    with counting(console, "recalibrations") as tell:
        for done, (setting, model) in enumerate(planned, 1):
            if setting not in points.found:
                points.add(setting, measure(setting, model, parts, data))
            tell(done, len(planned))
    return {setting: points.found[setting] for setting, _ in planned}


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Recalibrate the batch norm of slow averages on 32, 64, ... 8192 and all training images, early in "
        "a training and at its end, and see from where on more images change nothing.",
        epilog="Default: trains a ResNet-8 on 10,000 images of CIFAR-10 for 16 epochs, then measures; less than a "
        "quarter of an hour on two quiet cores. Interrupted at any time, the same command goes on from there.",
    )
    add = parser.add_argument
    add("--data", type=Path, default=Path("data"), metavar="DIR", help="holds CIFAR-10 (%(default)s)")
    add("--work", type=Path, default=Path("runs/recalibration"), metavar="DIR",
        help="for the training and for what was measured so far (%(default)s)")  # fmt: skip
    add("--run", type=Path, metavar="DIR", help="take the averages that a finished run has kept, in place of training")
    add("--dataset", default="cifar10", choices=["cifar10", "digits"], help="digits need no data (%(default)s)")
    add("--network", default="resnet8", help="of the study (%(default)s)")
    add("--subset", type=int, default=10_000, metavar="N", help="training images (%(default)s)")
    add("--test", type=int, default=10_000, metavar="N", help="test images (%(default)s)")
    add("--epochs", type=int, default=16, help="(%(default)s)")
    add("--early", type=int, default=2, metavar="EPOCH", help="when it is early (%(default)s)")
    add("--rate", type=float, default=0.4, help="the peak of the learning rate (%(default)s)")
    add("--averages", type=int, default=2, metavar="M", help="so many, the slowest (%(default)s)")
    add("--draws", type=int, default=4,
        help="of each number of images; half beyond 2048, and with augmentation (%(default)s)")  # fmt: skip
    add("--no-augmentation", dest="augment", action="store_false", help="measure without crops and flips only")
    add("--threads", type=int, default=2, help="of torch (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="keep the result, e.g. benchmarks/results/recalibration.json")
    add("--check", action="store_true", help="exit with 1 when nothing less than all images will do")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    asked = arguments(argv)
    if min(asked.averages, asked.draws, asked.threads) < 1:
        print("recalibration.py: --averages, --draws and --threads take numbers from 1 on", file=sys.stderr)
        return 1
    torch.set_num_threads(asked.threads)
    keep_memory()
    console = Console(stderr=True)
    known = conditions() | {"batch": BATCH}
    print(facts(known), end="\n\n", flush=True)
    try:
        source = trained(asked, console) if asked.run is None else of_run(asked)
        total, tested = len(source.parts.train), len(source.parts.test)
        points = Points(asked.work / f"{source.run}-{tested}.jsonl")
        found = measure_all(source, points, draws=asked.draws, augment=asked.augment, console=console)
    except (Interrupted, KeyboardInterrupt):
        print("recalibration.py: interrupted; the same command goes on from there", file=sys.stderr)
        return 130
    except (OSError, ValueError) as error:
        print(f"recalibration.py: {error}", file=sys.stderr)
        return 1
    curves = curves_of(found, total=total, tested=tested)
    print("\n\n".join(map(curve_table, curves)), end="\n\n")
    candidates = [enough(curves, augmented=augmented) for augmented in sorted({c.augmented for c in curves})]
    print("\n".join(enough_text(each, total) for each in candidates))
    verdict = judge(candidates, total)
    print(verdict)
    if asked.json:
        keep_result(
            asked.json,
            "python benchmarks/recalibration.py",
            known | {"data": source.data.dataset, "run": source.run, "images": total, "test_images": tested},
            verdicts=[verdict],
            curves=[asdict(curve) | {"own": curve.own and curve.own._asdict()} for curve in curves],
            enough=[asdict(each) for each in candidates],
        )
        print(f"kept in {asked.json}")
    return int(asked.check and not verdict.passed)


if __name__ == "__main__":
    sys.exit(main())
