"""A Lightning module whose averages are validated and watched by early stopping; the best of them is saved.

`python examples/lightning_module.py OUT.pt` takes a few seconds; needs `pip install ".[lightning,study]"`.
"""

import sys

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from emabank.integrations.lightning import EMABankCallback
from emabank.study.data.digits import digits_dataset


class Digits(pl.LightningModule):
    """An ordinary module that knows nothing of averages."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
            nn.Linear(64, 10),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        logits = self(batch[0])
        self.log("val_loss", F.cross_entropy(logits, batch[1]))
        self.log("val_accuracy", (logits.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main(out: str, *, epochs: int = 4) -> None:
    pl.seed_everything(0, verbose=False)
    digits = digits_dataset()
    training, validation = (
        TensorDataset(part.images.float() / 16.0, part.labels) for part in (digits.train, digits.test)
    )
    module = Digits()
    averages = EMABankCallback([0.96, 0.99], every=4, criteria={"val_accuracy": "max"}, recalibrate=8)
    watch = pl.callbacks.EarlyStopping("val_loss/ema-0.99", patience=3)
    trainer = pl.Trainer(
        max_epochs=epochs, callbacks=[averages, watch], accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(module, DataLoader(training, batch_size=32, shuffle=True), DataLoader(validation, batch_size=128))
    print(averages.tracker.advice(samples=len(validation)))
    torch.save(averages.best_weights(), out)  # Digits().load_state_dict(torch.load(out))


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["best.pt"])
