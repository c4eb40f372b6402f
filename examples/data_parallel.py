"""Several processes train one model (DistributedDataParallel), and each keeps the same averages of it.

`torchrun --nproc-per-node 2 examples/data_parallel.py OUT.pt`; with GPUs, move the model and the batches there.
"""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from emabank import EMABank, recalibrate_batchnorm
from emabank.study.data.digits import digits_dataset


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(64, 10),
    )  # fmt: skip


def main(out: str, *, epochs: int = 3) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    digits = digits_dataset()
    training = TensorDataset(digits.train.images.float() / 16.0, digits.train.labels)
    sampler = DistributedSampler(training, seed=0)
    loader = DataLoader(training, batch_size=32, sampler=sampler)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    bank = EMABank(model, [0.96, 0.98], every=4)  # the same line as with one process

    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            bank.update()  # on every process

    recalibrate_batchnorm(bank, loader)  # each process measures its part of the data; all get the combined statistics
    tested, labels = digits.test.images.float() / 16.0, digits.test.labels
    with torch.no_grad():
        logits = bank.call(0.96, tested)
    if dist.get_rank() == 0:  # any process would do: their averages are the same
        print(f"ema-0.96: {(logits.argmax(1) == labels).float().mean():.1%} on test images")
        torch.save(bank.weights(0.96), out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["averaged.pt"])
