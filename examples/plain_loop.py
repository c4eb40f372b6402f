"""A plain training loop with a bank: five averages are recalibrated and validated, and the best is exported.

`python examples/plain_loop.py OUT.pt` trains a small CNN on digits with 40% random labels, in a few seconds.
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from emabank import BestTracker, EMABank, recalibrate_batchnorm
from emabank.study.data.digits import digits_dataset


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def data() -> tuple[TensorDataset, tuple[Tensor, Tensor]]:
    """Training images, 40% of them with a random label, and 300 clean validation images."""
    digits = digits_dataset()
    images, labels = digits.train.images.float() / 16.0, digits.train.labels.clone()
    validation = images[:300], labels[:300].clone()
    wrong = torch.rand(len(labels), generator=torch.Generator().manual_seed(1)) < 0.4
    labels[wrong] = torch.randint(10, (int(wrong.sum()),), generator=torch.Generator().manual_seed(2))
    return TensorDataset(images[300:], labels[300:]), validation


def main(out: str, *, epochs: int = 15) -> None:
    torch.manual_seed(0)
    training, (images, labels) = data()
    loader = DataLoader(training, batch_size=32, shuffle=True)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    bank = EMABank(model, steps=epochs * len(loader))  # five averages; no decay to choose
    tracker = BestTracker(bank, {"accuracy": "max"})

    def validate(model: nn.Module) -> dict[str, Tensor]:
        return {"accuracy": model(images).argmax(1) == labels}  # per sample; the mean is the accuracy

    for epoch in range(1, epochs + 1):
        model.train()
        for inputs, targets in loader:
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            bank.update()

        recalibrate_batchnorm(bank, loader, max_batches=16)  # all averages at once; the live model does not change
        tracker.evaluate(epoch, validate)  # the live weights and every average
        if tracker.should_stop(patience=8):
            break

    print(tracker.advice())
    torch.save(tracker.weights("accuracy"), out)  # a plain state dict: make_model().load_state_dict(torch.load(out))


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["best.pt"])
