"""The work of each process in the test of the integrations under their frameworks' own DDP, under torchrun.

`frameworks.py FOLDER` writes a file per framework and rank: the averages, metrics and live weights.
"""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from emabank import BestTracker, EMABank
from tests.support.models import accuracy_and_loss, copies, data, network
from tests.support.trainers import AVERAGES, lightning_classifier, training_arguments

CRITERIA: Any = {"val_loss": "min"}
TRAINING, VALIDATION = data(48, seed=1), data(16, seed=2)


def with_lightning(folder: Path) -> dict[str, Any]:
    import lightning.pytorch as pl

    from emabank.integrations.lightning import EMABankCallback

    module = lightning_classifier()()
    callback = EMABankCallback(AVERAGES, every=1, criteria=CRITERIA, recalibrate=True)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        callbacks=[callback, pl.callbacks.ModelCheckpoint(folder / "checkpoints", save_last=True)],
        **quiet,
    )
    trainer.fit(module, DataLoader(TRAINING, batch_size=4, shuffle=True), DataLoader(VALIDATION, batch_size=4))
    saved = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["callbacks"]["EMABankCallback"]["bank"]["num_steps"] == 12
    return summary(callback.bank, callback.tracker, module)


def with_transformers(folder: Path) -> dict[str, Any]:
    from transformers import Trainer

    from emabank.integrations.transformers import FILE, EMABankCallback

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()

        def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = self.layers(inputs)
            return {"loss": cross_entropy(logits, labels), "logits": logits}

    def samples(dataset: Any) -> list[dict[str, Tensor]]:
        return [{"inputs": inputs, "labels": label} for inputs, label in zip(*dataset.tensors, strict=True)]

    sizes = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4}
    arguments = training_arguments(folder, ddp_backend="gloo", learning_rate=0.3, **sizes)
    trainer = Trainer(Model(), arguments, train_dataset=samples(TRAINING), eval_dataset=samples(VALIDATION))
    criteria: Any = {"eval_loss": "min"}
    callback = EMABankCallback(trainer, AVERAGES, every=1, criteria=criteria, recalibrate=True)
    trainer.add_callback(callback)
    trainer.train()
    dist.barrier()
    assert (folder / "checkpoint-12" / FILE).is_file()
    return summary(callback.bank, callback.tracker, trainer.model)


def with_accelerate(folder: Path) -> dict[str, Any]:
    from accelerate import Accelerator

    from emabank.integrations.accelerate import AcceleratedBank

    accelerator = Accelerator(cpu=True)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    loaders = DataLoader(TRAINING, batch_size=4, shuffle=True), DataLoader(VALIDATION, batch_size=4)
    wrapped, optimizer, loader, validation = accelerator.prepare(model, optimizer, *loaders)
    averages = AcceleratedBank(
        accelerator, wrapped, AVERAGES, every=1, criteria=CRITERIA, recalibrate=True, recalibrate_on=loader
    )

    def evaluate(network: nn.Module) -> dict[str, float]:
        losses = [cross_entropy(network(inputs), targets, reduction="none") for inputs, targets in validation]
        return {"val_loss": accelerator.gather_for_metrics(torch.cat(losses)).mean().item()}

    for epoch in (1, 2):
        wrapped.train()
        for inputs, targets in loader:
            accelerator.backward(cross_entropy(wrapped(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
            averages.update()
        averages.evaluate(evaluate, at=epoch)
    accelerator.save_state(str(folder / "state"))
    accelerator.wait_for_everyone()
    accelerator.load_state(str(folder / "state"))
    return summary(averages.bank, averages.tracker, model)


def summary(bank: EMABank, tracker: BestTracker, model: nn.Module) -> dict[str, Any]:
    """The averages and metrics of a rank at the end, with the losses on all validation data computed by hand."""
    criterion = next(iter(tracker.criteria))
    last = max(row.epoch for row in tracker.history)
    by_hand = {}
    for name in ("live", *bank.names):
        module = bank.module(name, batchnorm="averaged" if name == "live" else "recomputed")
        layers = module.layers if hasattr(module, "layers") else module
        by_hand[name] = accuracy_and_loss(layers, VALIDATION.tensors)[1]
    return {
        "steps": bank.num_steps,
        "averages": {name: bank.weights(name, batchnorm="recomputed") for name in bank.names},
        "live": copies(model),
        "tracked": {row.average: row.value for row in tracker.history if (row.epoch, row.metric) == (last, criterion)},
        "by_hand": by_hand,
        "best": tracker.weights(criterion),
    }


FRAMEWORKS = {"accelerate": with_accelerate, "transformers": with_transformers, "lightning": with_lightning}

if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[1])
    for name, train in FRAMEWORKS.items():
        torch.save(train(folder / name), folder / f"{name}-{os.environ['RANK']}.pt")
    dist.barrier()  # an open group sometimes aborts at exit, because a thread of gloo still holds tensors
    dist.destroy_process_group()
