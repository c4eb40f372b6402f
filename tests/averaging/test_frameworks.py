"""Averages load in the framework that wrote the checkpoints: transformers in all its layouts, and Lightning."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from emabank import recalibrate_batchnorm
from emabank.averaging import average_checkpoints, find_checkpoints
from tests.support.files import assert_average, everything_in, mean


def make_gpt(seed: int, **more: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 8, "vocab_size": 11}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **more))


def mean_state(models: list[Any]) -> dict[str, torch.Tensor]:
    return mean([model.state_dict() for model in models])


@pytest.mark.parametrize(
    ("shards", "dtype", "tied"),  # every pair of values
    [
        (None, torch.float32, True),
        (None, torch.bfloat16, False),
        ("10KB", torch.float32, False),
        ("10KB", torch.bfloat16, True),
    ],
)
def test_averages_load_in_transformers(tmp_path: Path, shards: str | None, dtype: torch.dtype, tied: bool):
    models = [make_gpt(seed, tie_word_embeddings=tied).to(dtype) for seed in (1, 2, 3)]
    for step, model in zip((50, 500, 1000), models, strict=True):
        model.save_pretrained(tmp_path / f"checkpoint-{step}", **({"max_shard_size": shards} if shards else {}))
        torch.save({"state": {}}, tmp_path / f"checkpoint-{step}" / "optimizer.pt")
    paths = find_checkpoints([tmp_path]).checkpoints
    assert [path.name for path in paths] == ["checkpoint-50", "checkpoint-500", "checkpoint-1000"]
    average_checkpoints(paths, tmp_path / "average")
    names = everything_in(tmp_path / "average")
    assert names == [name for name in everything_in(paths[-1]) if name != "optimizer.pt"]
    assert ("model.safetensors.index.json" in names) == (shards is not None)
    loaded, info = type(models[0]).from_pretrained(tmp_path / "average", dtype="auto", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert_average(loaded.state_dict(), mean_state(models))
    shared = loaded.lm_head.weight.data_ptr() == loaded.transformer.wte.weight.data_ptr()
    assert shared == tied and loaded.dtype == dtype


@pytest.mark.parametrize("tied", [True, False])
def test_averages_of_bin_files_load_in_transformers(tmp_path: Path, tied: bool):
    """The format of older versions, which transformers still loads."""
    models = [make_gpt(seed, tie_word_embeddings=tied) for seed in (1, 2)]
    folders = [tmp_path / f"checkpoint-{step}" for step in (1, 2)]
    for folder, model in zip(folders, models, strict=True):
        folder.mkdir()
        model.config.save_pretrained(folder)
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    average_checkpoints(folders, tmp_path / "average")
    loaded = type(models[0]).from_pretrained(tmp_path / "average")
    assert_average(loaded.state_dict(), mean_state(models))
    content = torch.load(tmp_path / "average/pytorch_model.bin", weights_only=True)
    shared = content["lm_head.weight"].data_ptr() == content["transformer.wte.weight"].data_ptr()
    assert shared == tied


def test_averages_load_and_resume_in_lightning(tmp_path: Path):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self, width: int = 4, rate: float = 0.1) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 1))
            self.rate = rate

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), self.rate)

    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(32, 3))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    saver = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path / "checkpoints", save_top_k=-1, save_last=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers and loggers
        trainer = lightning.Trainer(
            max_epochs=3, accelerator="cpu", callbacks=[saver], logger=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(Module(width=5), loader)
    found = find_checkpoints([tmp_path / "checkpoints"])
    assert len(found.checkpoints) == 3 and [path.name for path in found.skipped] == ["last.ckpt"]
    plan = average_checkpoints(found.checkpoints, tmp_path / "average.ckpt")
    states = [torch.load(path, weights_only=True)["state_dict"] for path in found.checkpoints]
    loaded = Module.load_from_checkpoint(tmp_path / "average.ckpt")
    assert loaded.hparams.width == 5
    assert_average(loaded.state_dict(), mean(states))
    last, average = (torch.load(path, weights_only=True) for path in (found.checkpoints[-1], tmp_path / "average.ckpt"))
    assert list(average) == list(last) and average["epoch"] == last["epoch"] == 2
    assert average["hyper_parameters"] == last["hyper_parameters"]
    assert plan.batchnorm == ("net.1.running_mean", "net.1.running_var")
    recalibrate_batchnorm(loaded.net, loader)
    features = loaded.net[0](data.tensors[0])
    torch.testing.assert_close(loaded.net[1].running_mean, features.mean(0).detach())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resumed = lightning.Trainer(
            max_epochs=4, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False, default_root_dir=tmp_path,
        )  # fmt: skip
        resumed.fit(Module(width=5), loader, ckpt_path=tmp_path / "average.ckpt")
    assert resumed.current_epoch == 4
