"""For the tests of the Lightning callback: a module, a callback and a logger that record, and a quiet Trainer."""

from multiprocessing import active_children
from typing import Any

import pytest
import torch
from integrations.by_hand import copies, data, network
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from emabank import EMA

L = pytest.importorskip("lightning.pytorch", reason="the extra lightning is not installed")
torchmetrics = pytest.importorskip("torchmetrics", reason="the extra lightning is not installed")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers.logger import Logger  # noqa: E402

from emabank.integrations.lightning import EMABankCallback  # noqa: E402

IGNORED = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory.*exists and is not empty"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:.*`isinstance.treespec, LeafSpec.`"),
]

VALIDATION = data(20, seed=2)
AVERAGES = {"fast": EMA(0.5, warmup=None), "slow": EMA(0.9, warmup=None)}


class Module(L.LightningModule):
    """Logs its validation in two ways: a value per batch, and a metric with a state."""

    def __init__(self, *, norm: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = network(norm=norm, dropout=dropout)
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(3, average="micro")
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.calls += 1
        logits = self(batch[0])
        self.log("val_loss", cross_entropy(logits, batch[1]), on_step=True, on_epoch=True)
        self.accuracy(logits, batch[1])
        self.log("val_accuracy", self.accuracy, logger=False)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)


class Recorder(L.Callback):
    """Records the weights, the random state and the number of worker processes after each training batch."""

    def __init__(self) -> None:
        self.weights: list[dict[str, Tensor]] = []
        self.random: list[Tensor] = []
        self.training: list[bool] = []
        self.workers: list[int] = []

    def on_train_batch_end(self, trainer: Any, pl_module: nn.Module, *_: Any) -> None:
        self.weights.append(copies(pl_module.layers))
        self.random.append(torch.get_rng_state())
        self.training.append(all(module.training for module in pl_module.layers.modules()))
        self.workers.append(len(active_children()))


class RecordingLogger(Logger):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, dict[str, float]]] = []

    name = version = "recording"

    def log_hyperparams(self, *_: Any, **__: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step or 0, metrics))


def training_loader(**keywords: Any) -> DataLoader[Any]:
    return DataLoader(data(48, seed=1), batch_size=8, shuffle=True, **keywords)


QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def fit(
    module: Any,
    *callbacks: Any,
    epochs: int = 2,
    loader: Any = None,
    validation: Any = None,
    ckpt_path: Any = None,
    **keywords: Any,
) -> Any:
    trainer = L.Trainer(
        **{
            "max_epochs": epochs,
            "accelerator": "cpu",
            "callbacks": list(callbacks),
            **QUIET,
            "enable_checkpointing": any(isinstance(callback, ModelCheckpoint) for callback in callbacks),
            **keywords,
        }
    )
    torch.manual_seed(11)
    loader = training_loader() if loader is None else loader
    validation = DataLoader(VALIDATION, batch_size=8) if validation is None else validation
    trainer.fit(module, loader, validation, ckpt_path=ckpt_path)
    return trainer


def bank_callback(**keywords: Any) -> EMABankCallback:
    return EMABankCallback(AVERAGES, **{"every": 1, "criteria": {"val_loss": "min", "val_accuracy": "max"}, **keywords})
