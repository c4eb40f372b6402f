"""Runs the whole protocol on your own model and data (tune, choose, refit, test), then loads the chosen weights.

`python examples/own_model.py FOLDER` keeps its runs in FOLDER; run again, it trains nothing twice.
"""

import sys

import torch
from torch import nn

from emabank.study import DataConfig, ProtocolConfig, TrainingConfig, load_results, run_protocol
from emabank.study.data.digits import digits_dataset


def make_model() -> nn.Module:
    """A small CNN for grey images; any module that returns logits will do, with batch norm or without."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def main(runs: str) -> None:
    # Your data: images uint8 [n, channels, height, width], labels whole numbers; or the path of a folder of images.
    digits = digits_dataset()
    data = (digits.train.images, digits.train.labels, digits.test.images, digits.test.labels)
    config = ProtocolConfig(
        data=DataConfig(noise=0.3),  # wrong labels, to see averages at work; omit it for your own labels
        training=TrainingConfig(epochs=12),
        rates=(0.1, 0.3),
        seeds=2,
        swa=False,
    )
    done = run_protocol(make_model, data, config, runs=runs)

    # Every measurement is a row of a pandas frame.
    rows = load_results(runs)
    tested = rows[(rows.trained_on == "100%") & (rows.split == "test") & (rows.metric == "accuracy")]
    print(tested.groupby(["weights", "batchnorm", "selected_by", "seed"]).value.mean().to_string())

    # Load the weights that validation chose for seed 0, and scale the images as in training.
    average, epoch = done.choices[0].averages["accuracy"]
    tensors, notes = done.refitted[0].load_snapshot(f"{average}-accuracy")
    model = make_model()
    model.load_state_dict(tensors)
    mean, std = (torch.tensor(notes[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
    with torch.no_grad():
        predicted = model.eval()((data[2] - mean) / std).argmax(dim=1)
    print(f"seed 0 ships {average} of epoch {epoch}: {(predicted == data[3]).float().mean():.1%} on the test images")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "own-model-runs")
