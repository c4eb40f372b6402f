"""The work of each process in the test of the integrations under their frameworks' own FSDP2, under torchrun.

`sharded_frameworks.py FOLDER` exits with 0 if all assertions hold on its rank.
"""

import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, Trainer
from transformers.distributed import DistributedConfig

from emabank import EMABank
from emabank.integrations import lightning, transformers
from tests.support.models import data
from tests.support.trainers import AVERAGES, lightning_classifier, training_arguments

VALIDATION = DataLoader(data(16, seed=2), batch_size=8)


class Module(lightning_classifier()):
    def configure_model(self) -> None:
        fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])


def make_trainer(*callbacks: pl.Callback) -> pl.Trainer:
    return pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=2,
        strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
        callbacks=list(callbacks),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def fit(folder: Path, resume: Path | None = None) -> lightning.EMABankCallback:
    callback = lightning.EMABankCallback(AVERAGES, every=1, recalibrate=True, snapshots="each")
    saver = pl.callbacks.ModelCheckpoint(folder, monitor="val_loss/slow", save_top_k=-1, filename="{epoch}")
    training = DataLoader(data(48, seed=1), batch_size=8)
    make_trainer(callback, saver).fit(Module(), training, VALIDATION, ckpt_path=resume)
    return callback


def check_sharded(bank: EMABank) -> None:
    for name in (*bank.names, "live"):
        parameters = dict(bank.model.named_parameters())
        assert parameters and all(isinstance(bank.weights(name)[key], DTensor) for key in parameters)


def with_lightning(folder: Path) -> None:
    """The averages are sharded, and resumed with the live weights from a checkpoint of an average."""
    callback = fit(folder)
    check_sharded(callback.bank)
    resumed = fit(folder / "resumed", folder / "epoch=0.ckpt")
    for name in (*AVERAGES, "live"):
        expected, weights = callback.bank.weights(name, full=True), resumed.bank.weights(name, full=True)
        for key, value in expected.items():
            if name != "live" or "running" not in key:  # a checkpoint has the live statistics of one rank
                assert torch.equal(weights[key], value), (name, key)
    for row, again in zip(callback.tracker.history, resumed.tracker.history, strict=True):
        assert row == again or row.average == "live", (row, again)
    # The best checkpoint by the average's metric has the same loss when it is loaded.
    best = callback.tracker.best("val_loss", "slow")
    path = folder / f"epoch={best.epoch // 3 - 1}.ckpt"
    [metrics] = make_trainer().validate(Module(), VALIDATION, path, verbose=False)
    assert abs(metrics["val_loss"] - best.value) < 1e-6, (metrics, best)


def with_transformers(folder: Path) -> None:
    """The averages of a model that is sharded when it is loaded; its best checkpoint loads alone."""
    if dist.get_rank() == 0:
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        LlamaForCausalLM(LlamaConfig(vocab_size=11, max_position_embeddings=16, **sizes)).save_pretrained(folder)
    dist.barrier()
    model = LlamaForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(fsdp_size=2))
    tokens = [(torch.arange(8) * stride) % 11 for stride in range(1, 11)]
    samples = [{"input_ids": sequence, "labels": sequence.clone()} for sequence in 4 * tokens]
    sizes = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "max_steps": 8}
    best = {"save_only_model": True, "metric_for_best_model": "eval_loss/slow", "greater_is_better": False}
    arguments = training_arguments(folder, ddp_backend="gloo", learning_rate=0.1, **sizes, **best)
    trainer = Trainer(model, arguments, train_dataset=samples, eval_dataset=samples[:16])
    callback = transformers.EMABankCallback(trainer, AVERAGES, every=1, snapshots="each", finish_with="slow")
    trainer.add_callback(callback)
    trainer.train()
    check_sharded(callback.bank)
    best = callback.tracker.best("eval_loss", "slow")
    assert best.epoch == 8, "the best checkpoint is not the last, which the model now has"
    assert abs(trainer.evaluate()["eval_loss"] - best.value) < 1e-5
    weights = callback.tracker.weights("eval_loss", "slow")
    for key, value in LlamaForCausalLM.from_pretrained(str(trainer.state.best_model_checkpoint)).state_dict().items():
        assert torch.equal(value, weights[key]), key
    # The saved averages load into a new sharded bank.
    state = transformers.read_state(folder / "checkpoint-8" / transformers.FILE, kind="averages of a Trainer")
    bank = EMABank(model, AVERAGES, every=1)
    bank.load_state_dict(state["bank"])
    for name in AVERAGES:
        for key, value in callback.bank.weights(name, full=True).items():
            assert torch.equal(bank.weights(name, full=True)[key], value), (name, key)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with_lightning(Path(sys.argv[1]) / "lightning")
    with_transformers(Path(sys.argv[1]) / "transformers")
    dist.barrier()  # an open group sometimes aborts at exit, because a thread of gloo still holds tensors
    dist.destroy_process_group()
