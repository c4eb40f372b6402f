"""How many validation images, averages and epochs does it take to choose an average?

Measuring M averages costs M passes over the validation images. A ResNet-8 trains on CIFAR-10N (40 % wrong labels) at
16 × 16 pixels, with five averages. After every epoch the live weights and all averages predict 5,000 validation images
with clean labels and 5,000 test images. From these predictions the choice is repeated many times: with fewer validation
images, drawn at random, with fewer averages, or at fewer epochs. How often does the choice change, and how much test
accuracy does that cost?

`python experiments/validation_images.py --data data` trains one network per seed (minutes each) and resumes where it
was killed.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `python experiments/validation_images.py`

from emabank import EMABank
from emabank.study.config import DataConfig
from emabank.study.data.datasets import load_dataset
from emabank.study.models import build_network
from experiments.record import Record, interval_text, log, parse_options, run_command

IMAGES = (50, 100, 200, 500, 1000, 2000, 5000)
DRAWS = 500
EPOCHS, BATCH, PART = 20, 64, 5000  # PART: the number of training, of validation and of test images
LEVERS = {
    "all": (slice(None), slice(None)),
    "every 2nd epoch": (slice(1, None, 2), slice(None)),
    "every 4th epoch": (slice(3, None, 4), slice(None)),
    "three averages": (slice(None), [0, 1, 3, 5]),
    "slowest average": (slice(None), [0, 5]),
    "live weights alone": (slice(None), [0]),
}
"""The epochs and the weights (0 is the live ones) that are measured."""


def train(seed: int, data: Path, rate: float) -> tuple[Tensor, Tensor]:
    """Which validation and test images are classified correctly: [epochs, weights, images], the live weights first."""
    dataset = load_dataset(DataConfig(dataset="cifar10n", size=16), data)
    order = torch.randperm(len(dataset.train), generator=torch.Generator().manual_seed(seed))
    training, validation = dataset.train.take(order[:PART]), dataset.train.take(order[PART : 2 * PART])
    test = dataset.test.take(torch.arange(PART))
    mean, std = (f(training.images.float(), dim=(0, 2, 3), keepdim=True) for f in (torch.mean, torch.std))

    def normalised(images: Tensor) -> Tensor:
        return ((images.float() - mean) / std).contiguous(memory_format=torch.channels_last)

    inputs, held_out, truth = normalised(training.images), normalised(validation.images), normalised(test.images)
    torch.manual_seed(seed)
    model: Any = build_network("resnet8", classes=10, width=32)
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, nesterov=True, weight_decay=1e-4)
    steps = EPOCHS * math.ceil(PART / BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    bank = EMABank(model, steps=steps)

    def right(model: nn.Module) -> tuple[Tensor, Tensor]:
        predicted = [torch.cat([model(batch).argmax(1) for batch in images.split(250)]) for images in (held_out, truth)]
        return predicted[0] == validation.clean, predicted[1] == test.clean

    results: list[list[tuple[Tensor, Tensor]]] = []
    for epoch in range(EPOCHS):
        model.train()
        for index in torch.randperm(PART).split(BATCH):
            batch = inputs[index]
            flipped = torch.where(torch.rand(len(index), 1, 1, 1) < 0.5, batch.flip(3), batch)
            F.cross_entropy(model(flipped), training.labels[index]).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            bank.update()
        results.append(list(bank.evaluate(right).values()))
        live, slowest = (100 * results[-1][place][1].float().mean() for place in (0, -1))
        log(f"seed {seed}: epoch {epoch + 1} of {EPOCHS}, test accuracy {live:.1f} % live, {slowest:.1f} % slowest")
    on_validation, on_test = (torch.stack([torch.stack(row) for row in part]) for part in _split(results))
    return on_validation, on_test


def _split(results: list[list[tuple[Tensor, Tensor]]]) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    return [[pair[0] for pair in row] for row in results], [[pair[1] for pair in row] for row in results]


def choose(accuracies: Tensor) -> Tensor:
    """Per draw, the flat index of the best of [draws, epochs, weights]; the first of equal ones."""
    flat = accuracies.flatten(1)
    return (flat == flat.max(1, keepdim=True).values).int().argmax(1)


def measure(on_validation: Tensor, on_test: Tensor) -> dict[str, Any]:
    """How often fewer images change the choice and what that costs on test; test accuracy of each of `LEVERS`."""
    exact = on_test.double().mean(2)
    best = choose(on_validation.double().mean(2)[None])
    full = exact.flatten()[best].item()
    by_images: dict[str, dict[str, float]] = {}
    for count in IMAGES:
        draws = [torch.randperm(PART, generator=torch.Generator().manual_seed(draw))[:count] for draw in range(DRAWS)]
        chosen = torch.cat([choose(on_validation[:, :, draw].double().mean(2)[None]) for draw in draws])
        lost = full - exact.flatten()[chosen]
        by_images[str(count)] = {
            "changed": (chosen != best).double().mean().item(),
            "lost": lost.mean().item(),
            "lost_95": lost.quantile(0.95).item(),
        }
    by_lever = {}
    for name, (epochs, weights) in LEVERS.items():
        seen, true = on_validation[epochs][:, weights], exact[epochs][:, weights]
        by_lever[name] = true.flatten()[choose(seen.double().mean(2)[None])].item()
    return {"images": by_images, "levers": by_lever}


def summary(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# How many validation images it takes to choose",
        "",
        f"CIFAR-10N, {PART:,} training images at 16 × 16, ResNet-8 of width 32, {EPOCHS} epochs, {len(rows)} seeds, "
        f"{DRAWS} random draws of validation images per seed. The choice is among {EPOCHS} epochs of five averages and "
        f"the live weights. Lost is test accuracy, in points, against the choice with all {PART:,}.",
        "",
        "| validation images | choice differs | lost: mean [95 % t-interval over seeds] | worst 5 % of draws |",
        "|---:|---:|---|---:|",
    ]
    for count in map(str, IMAGES):
        values = [row["images"][count] for row in rows]
        changed = sum(value["changed"] for value in values) / len(values)
        worst = sum(value["lost_95"] for value in values) / len(values)
        lost = interval_text([100 * value["lost"] for value in values], digits=2)
        lines.append(f"| {int(count):,} | {100 * changed:.0f} % | {lost} | {100 * worst:.1f} |")
    lines += [
        "",
        "| measured, on all validation images | passes per epoch | test accuracy of the choice, % |",
        "|---|---:|---|",
    ]
    for name, (epochs, weights) in LEVERS.items():
        passes = len(torch.arange(6)[weights]) * len(torch.arange(EPOCHS)[epochs]) / EPOCHS
        accuracies = [100 * row["levers"][name] for row in rows]
        lines.append(f"| {name} | {passes:g} | {interval_text(accuracies, digits=2)} |")
    return "\n".join(lines) + "\n"


def draw(figure: Figure, rows: list[dict[str, Any]]) -> None:
    left, right = figure.subplots(1, 2)
    for key, axes, label in (("changed", left, "choice differs, %"), ("lost", right, "test accuracy lost, points")):
        for row in rows:
            axes.plot(
                IMAGES, [100 * row["images"][str(n)][key] for n in IMAGES], color="#7b2f9a", alpha=0.4, linewidth=0.8
            )
        means = [100 * sum(row["images"][str(n)][key] for row in rows) / len(rows) for n in IMAGES]
        axes.plot(IMAGES, means, color="#2b1b6b", linewidth=2.5, marker="o")
        axes.set_xscale("log")
        axes.set_xticks(IMAGES, [f"{n:,}" for n in IMAGES])
        axes.minorticks_off()
        axes.set_ylim(bottom=min(0.0, *(100 * row["images"][str(n)][key] for row in rows for n in IMAGES)))
        axes.set_xlabel("validation images")
        axes.set_ylabel(label)
    figure.suptitle(
        f"Choosing with fewer validation images: {len(rows)} seeds (thin) and their mean", fontsize="medium"
    )


def main() -> None:
    options = parse_options(__doc__, seeds="900-902", rate=0.1, out="results/validation_images", data=True)
    settings = {"rate": options.rate, "epochs": EPOCHS, "batch": BATCH, "images": PART, "draws": DRAWS}
    record = Record(options.out, settings)
    for seed in options.seeds:
        if any(row["seed"] == seed for row in record.rows()):
            continue
        start = time.process_time()
        values = measure(*train(seed, options.data, options.rate))
        record.append({"seed": seed, **values, "core_seconds": round(time.process_time() - start, 1)})
    rows = sorted(record.rows(), key=lambda row: row["seed"])
    record.write("summary.md", summary(rows))
    record.draw("choices.svg", lambda figure: draw(figure, rows), size=(10, 4))
    print(summary(rows))


if __name__ == "__main__":
    run_command(main)
