"""The settings and modules of framework trainings that several tests share; frameworks are imported when needed."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from emabank import EMA
from tests.support.models import network

AVERAGES = {"fast": EMA(0.5, warmup=None), "slow": EMA(0.9, warmup=None)}


def training_arguments(folder: Path, **options: Any) -> Any:
    """Arguments for a short, quiet training with transformers on the CPU."""
    from transformers import TrainingArguments

    return TrainingArguments(
        **{
            "output_dir": str(folder), "use_cpu": True, "report_to": [], "disable_tqdm": True, "optim": "sgd",
            "max_steps": 12, "eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4,
            "dataloader_pin_memory": False, **options,
        }
    )  # fmt: skip


def lightning_classifier() -> type[Any]:
    """A module of Lightning that logs its validation loss, over all ranks."""
    from lightning.pytorch import LightningModule

    class Classifier(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layers(inputs)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", self.training_step(batch, batch_idx), sync_dist=True)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.3)

    return Classifier
