"""The demo: train a small network on wrong labels with five weight averages, and see which of them to ship.

This module trains and measures; the table and the figure come from `report.demo`.
"""

import json
import tempfile
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

import emabank
from emabank import EMA
from emabank.atomic import write_atomically
from emabank.study.averages import rules
from emabank.study.config import (
    AveragesConfig,
    DataConfig,
    HardwareConfig,
    MeasuringConfig,
    Recipe,
    RunConfig,
    TrainingConfig,
)
from emabank.study.data.digits import digits_dataset
from emabank.study.data.images import Images, normalisation_of
from emabank.study.data.splits import Parts, stratified_split, symmetric_noise
from emabank.study.evaluate import EpochMetric
from emabank.study.executors.progress import progress
from emabank.study.models import build_network
from emabank.study.report.demo import Measured as Row
from emabank.study.report.demo import Record, Selected, closing_line, demo_figure, demo_page, demo_table
from emabank.study.report.draw import FORMATS, draw
from emabank.study.report.render import terminal
from emabank.study.train import LIVE, Training

if TYPE_CHECKING:
    from emabank.study.commands.studies import DemoArguments

WIDTH = 8
PEAK_RATE = 0.8


def run_demo(config: "DemoArguments", console: Console | None = None) -> Record:
    """Train, measure every epoch, print the comparison, write a page, figures and rows.json to `config.out`."""
    stderr, console = console or Console(stderr=True), console or Console()
    config.out.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=config.out).close()  # fails before training if the folder cannot be written
    torch.set_num_threads(config.threads)
    console.print(_opening_lines(config), highlight=False)
    record = _train(config, stderr)
    _write(record, config)
    console.print(terminal(demo_table(record), width=console.width))
    console.print(closing_line(record), highlight=False)
    console.print(
        f"\nOpen {(config.out / 'index.html').resolve().as_uri()} in a browser; the same folder has curves.svg, "
        "curves.pdf and rows.json.\nNext: `emabank run all` runs the paper's studies on these digits; `emabank report` "
        "shows them.",
        highlight=False,
        soft_wrap=True,
    )
    return record


def run_config(config: "DemoArguments") -> RunConfig:
    """The demo as a run of the study: trained on all training images, with every measurement after each epoch."""
    recipe = Recipe(
        data=DataConfig(noise=config.noise, noise_seed=config.seed),
        training=TrainingConfig(
            network="resnet8",
            width=WIDTH,
            epochs=config.epochs,
            weight_decay=5e-4,
            warmup_epochs=config.epochs / 12,
        ),
        averages=AveragesConfig(),
        measuring=MeasuringConfig(recompute="each-epoch", on_train=True, test_curves=True),
        hardware=HardwareConfig(device="cpu", threads=config.threads),
    )
    return RunConfig(recipe=recipe, rate=PEAK_RATE, seed=config.seed, trained_on="100%")


def demo_parts(config: "DemoArguments") -> Parts:
    """All 1297 training digits, some with wrong labels; the 500 test digits, half to choose on and half to test on."""
    digits = digits_dataset()
    clean = digits.train.clean
    noisy = symmetric_noise(clean, config.noise, classes=digits.classes, seed=config.seed)
    train = Images(digits.train.images, noisy, clean)
    test, validation = stratified_split(digits.test.clean, 0.5, seed=0)
    return Parts(train, digits.test.take(validation), digits.test.take(test), digits.classes, normalisation_of(train))


def _train(config: "DemoArguments", stderr: Console) -> Record:
    started = time.monotonic()
    run = run_config(config)
    with torch.random.fork_rng(devices=[]):
        training = Training(
            run,
            demo_parts(config),
            lambda: build_network("resnet8", classes=10, channels=1, width=WIDTH),
            device=torch.device("cpu"),
        )
        with progress(stderr, config.epochs) as on_epoch:
            training.run(on_epoch=on_epoch)
    steps = training.schedule.steps
    averages = rules(run.recipe.averages, steps)
    rows = _rows([*training.measured, *training.test_curves])
    return Record(
        conditions=_conditions(config, run, steps, seconds=time.monotonic() - started),
        learning_rate=[epoch["rate"] for epoch in training.history()],
        best=_best(training, averages),
        chosen=_chosen(training, averages, rows),
        rows=rows,
    )


def _rows(measured: list[EpochMetric]) -> list[Row]:
    """One row per epoch and set of weights, with all of its metrics."""
    table: dict[tuple[int, str, str], dict[str, float]] = {}
    for metric in measured:
        values = table.setdefault((metric.epoch, metric.weights, metric.batchnorm), {})
        values[f"{metric.split} {metric.metric}"] = metric.value
    return [
        Row(
            epoch=epoch,
            average=weights,
            statistics="live" if weights == LIVE else statistics,  # type: ignore[arg-type]
            validation_accuracy=values["val accuracy"],
            test_accuracy=values["test accuracy"],
            memorised=values.get("train memorised"),
        )
        for (epoch, weights, statistics), values in table.items()
    ]


def _best(training: Training, averages: dict[str, EMA]) -> str:
    """The weights with the best validation accuracy; ties go to the earliest epoch, then to the live weights."""
    live, best = training.selector.live.best("accuracy"), training.selector.averages.best("accuracy", list(averages))
    return best.average if (-best.value, best.epoch) < (-live.value, live.epoch) else LIVE


def _chosen(training: Training, averages: dict[str, EMA], rows: list[Row]) -> list[Selected]:
    by_place = {(row.average, row.statistics, row.epoch): row for row in rows}
    chosen: list[Selected] = []
    for name in (LIVE, *averages):
        tracker = training.selector.live if name == LIVE else training.selector.averages
        epoch = tracker.best("accuracy", name).epoch
        statistics = "live" if name == LIVE else "averaged"
        chosen.append(
            Selected(
                average=name,
                half_life=None if name == LIVE else float(averages[name].half_life or 0.0),
                epoch=epoch,
                at_choice=by_place[name, statistics, epoch],
                at_choice_recomputed=by_place.get((name, "recomputed", epoch)),
                at_end=by_place[name, statistics, training.epoch],
            )
        )
    return chosen


def _opening_lines(config: "DemoArguments") -> str:
    averages = len(AveragesConfig().names)
    return (
        f"Training a ResNet-8 on 1297 handwritten digits, {100 * config.noise:g}% of them with a wrong label: "
        f"{config.epochs} epochs, seed {config.seed}.\n"
        f"The live weights and {averages} averages of them are measured after each epoch on 500 other digits with "
        "clean labels."
    )


def _conditions(config: "DemoArguments", run: RunConfig, steps: int, *, seconds: float) -> dict[str, Any]:
    settings = asdict(config)
    del settings["out"]  # results do not depend on it
    training = run.recipe.training
    return {
        **settings,
        "steps": steps,
        "batch": training.batch,
        "width": training.width,
        "peak_rate": run.rate,
        "weight_decay": training.weight_decay,
        "torch": torch.__version__,
        "emabank": emabank.__version__,
        "seconds": round(seconds, 1),
    }


def _write(record: Record, config: "DemoArguments") -> None:
    rows = json.dumps(asdict(record), indent=1)
    write_atomically(config.out / "rows.json", lambda path: path.write_text(rows))
    figure, text = demo_figure(record), demo_page(record)
    for file_format in FORMATS:
        write_atomically(
            config.out / f"curves.{file_format}",
            lambda path, kind=file_format: draw(figure, path, file_format=kind),
        )
    write_atomically(config.out / "index.html", lambda path: path.write_text(text, encoding="utf-8"))
