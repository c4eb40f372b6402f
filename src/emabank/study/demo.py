"""The demo: a small network, wrong labels, five weight averages beside it, and which of them to ship.

Data in, training, measurements out; the table and the figure are the report's.
"""

import json
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

import emabank
from emabank import EMA, BestTracker, EMABank, recalibrate_batchnorm
from emabank.checkpoint import write_atomically
from emabank.study.config import DemoConfig
from emabank.study.data.digits import CLASSES, Split, load_digits
from emabank.study.data.noise import symmetric_noise
from emabank.study.models.resnet import resnet8
from emabank.study.progress import progress
from emabank.study.report.curves import draw_curves
from emabank.study.report.rows import Chosen, Record, Row
from emabank.study.report.table import closing_line, comparison_table, percent

# Half-lives as shares of the run: those of the paper's five decays, 0.968 to 0.998 every 16 of its 78,200 steps.
HALF_LIVES = {f"ema-{percentage}%": percentage / 100 for percentage in (0.44, 0.88, 1.8, 3.5, 7.1)}
BATCH = 128
FORWARD_BATCH = 256  # the fastest on a CPU when nothing has to be kept for a backward pass
WIDTH = 8
PEAK_RATE = 0.8
WARMUP_SHARE = 1 / 12  # of the steps: 5 of 60 epochs
WEIGHT_DECAY = 5e-4


def run_demo(config: DemoConfig, console: Console | None = None) -> Record:
    """Train, measure every epoch, print the comparison, write curves.svg, curves.png and rows.json to `config.out`."""
    console = console or Console()
    config.out.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=config.out).close()  # a folder that cannot be written is found before the training
    torch.set_num_threads(config.threads)
    console.print(_opening_lines(config), highlight=False)
    record = _train(config, console)
    _write(record, config)
    console.print(comparison_table(record), closing_line(record), sep="\n", highlight=False)
    console.print(
        f"Figure and numbers: {config.out}/curves.svg, curves.png, rows.json", highlight=False, soft_wrap=True
    )
    return record


def _train(config: DemoConfig, console: Console) -> Record:
    started = time.monotonic()
    parts = _parts(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = resnet8(classes=CLASSES, channels=1, width=WIDTH)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=PEAK_RATE, momentum=0.9, nesterov=True, weight_decay=WEIGHT_DECAY
    )
    steps = config.epochs * math.ceil(len(parts.train.labels) / BATCH)
    rules = averages(steps)
    bank = EMABank(model, rules, every=1)
    tracker = BestTracker(bank, {"accuracy": "max"}, snapshots=None)
    shuffle = torch.Generator().manual_seed(config.seed)

    rows: list[Row] = []
    rates: list[float] = []
    with progress(console, config.epochs) as tell:
        for epoch in range(1, config.epochs + 1):
            model.train()
            for batch in torch.randperm(len(parts.train.labels), generator=shuffle).split(BATCH):
                optimizer.param_groups[0]["lr"] = learning_rate(bank.num_steps, steps)
                F.cross_entropy(model(parts.train.images[batch]), parts.train.labels[batch]).backward()
                optimizer.step()
                optimizer.zero_grad()
                bank.update()
            rates.append(optimizer.param_groups[0]["lr"])
            measured = list(_measured(bank, model, parts, epoch))
            # As in the paper's protocol, weights are chosen with averaged statistics.
            selectable = [row for row in measured if row.statistics != "recomputed"]
            tracker.observe(epoch, {row.average: {"accuracy": row.validation_accuracy} for row in selectable})
            rows += measured
            tell(epoch, _in_short(selectable))
    return Record(
        conditions=_conditions(config, steps, seconds=time.monotonic() - started),
        learning_rate=rates,
        best=tracker.best("accuracy").average,
        chosen=_chosen(tracker, rules, rows),
        rows=rows,
    )


def averages(steps: int) -> dict[str, EMA]:
    """The five averages for a run of so many steps, sampled at every step.

    No warm-up: (t+1)/(t+10) stays below the slow decays for most of so short a run, and they would coincide.

    >>> [round(rule.half_life or 0, 1) for rule in averages(660).values()]
    [2.9, 5.8, 11.9, 23.1, 46.9]
    """
    return {name: EMA(half_life=share * steps, warmup=None) for name, share in HALF_LIVES.items()}


def learning_rate(step: int, steps: int) -> float:
    """The rate at a step counted from 0: a linear rise over the first twelfth of the run, then a cosine to 0.

    >>> [round(learning_rate(step, 120), 3) for step in (0, 9, 10, 65, 120)]
    [0.08, 0.8, 0.8, 0.4, 0.0]
    """
    warmup = WARMUP_SHARE * steps
    if step < warmup:
        return PEAK_RATE * min(1.0, (step + 1) / warmup)
    return PEAK_RATE * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


class _Parts(NamedTuple):
    train: Split
    """With the labels as they were given, wrong ones included."""
    mislabelled: Split
    """The part of them that has wrong labels, and those labels."""
    validation: Split
    test: Split


def _parts(config: DemoConfig) -> _Parts:
    digits = load_digits()
    images, labels = digits.train
    noisy, wrong = symmetric_noise(labels, config.noise, classes=CLASSES, seed=config.seed)
    return _Parts(Split(images, noisy), Split(images[wrong], noisy[wrong]), digits.validation, digits.test)


def _measured(bank: EMABank, model: nn.Module, parts: _Parts, epoch: int) -> Iterator[Row]:
    """The live weights, then every average with averaged and with recomputed batch-norm statistics."""
    model.eval()
    recalibrate_batchnorm(bank, parts.train.images.split(FORWARD_BATCH))
    yield _row(model, parts, epoch, "live", "live")
    kinds: tuple[Literal["averaged", "recomputed"], ...] = ("averaged", "recomputed")
    for name in bank.names:
        for kind in kinds:
            with bank.applied(name, batchnorm=kind):
                row = _row(model, parts, epoch, name, kind)
            yield row


def _row(
    model: nn.Module, parts: _Parts, epoch: int, average: str, statistics: Literal["live", "averaged", "recomputed"]
) -> Row:
    return Row(
        epoch=epoch,
        average=average,
        statistics=statistics,
        validation_accuracy=_accuracy(model, parts.validation),
        test_accuracy=_accuracy(model, parts.test),
        memorised=_accuracy(model, parts.mislabelled) if len(parts.mislabelled.labels) else None,
    )


@torch.no_grad()
def _accuracy(model: nn.Module, part: Split) -> float:
    logits = torch.cat([model(batch) for batch in part.images.split(FORWARD_BATCH)])
    return (logits.argmax(dim=1) == part.labels).float().mean().item()


def _chosen(tracker: BestTracker, rules: dict[str, EMA], rows: list[Row]) -> list[Chosen]:
    by_place = {(row.average, row.statistics, row.epoch): row for row in rows}
    last = max(row.epoch for row in rows)
    chosen: list[Chosen] = []
    for name in ("live", *rules):
        epoch = tracker.best("accuracy", name).epoch
        statistics = "live" if name == "live" else "averaged"
        chosen.append(
            Chosen(
                average=name,
                half_life=None if name == "live" else rules[name].half_life,
                epoch=epoch,
                at_choice=by_place[name, statistics, epoch],
                at_choice_recomputed=by_place.get((name, "recomputed", epoch)),
                at_end=by_place[name, statistics, last],
            )
        )
    return chosen


def _opening_lines(config: DemoConfig) -> str:
    return (
        f"ResNet-8, 1297 handwritten digits, {100 * config.noise:g}% of them with a wrong label.\n"
        f"{config.epochs} epochs, seed {config.seed}; beside it {len(HALF_LIVES)} averages of its weights.\n"
        "All are measured after each epoch on 500 other digits, whose labels are right."
    )


def _in_short(rows: list[Row]) -> str:
    live, *averages = rows
    best = max(averages, key=lambda row: row.validation_accuracy)
    return f"live {percent(live.validation_accuracy)}%, {best.average} {percent(best.validation_accuracy)}%"


def _conditions(config: DemoConfig, steps: int, *, seconds: float) -> dict[str, Any]:
    settings = asdict(config)
    del settings["out"]  # where a run is kept is no part of what it is
    return {
        **settings,
        "steps": steps,
        "batch": BATCH,
        "width": WIDTH,
        "peak_rate": PEAK_RATE,
        "weight_decay": WEIGHT_DECAY,
        "torch": torch.__version__,
        "emabank": emabank.__version__,
        "seconds": round(seconds, 1),
    }


def _write(record: Record, config: DemoConfig) -> None:
    text = json.dumps(record.as_json(), indent=1)
    write_atomically(config.out / "rows.json", lambda path: path.write_text(text))
    for file_format in ("svg", "png"):
        write_atomically(
            config.out / f"curves.{file_format}",
            lambda path, kind=file_format: draw_curves(record, path, file_format=kind),
        )
