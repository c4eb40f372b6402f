"""The README's comparison with other libraries: every measurable cell is measured on the real library."""

import io
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ema_pytorch
import lightning
import pytest
import torch
from torch import Tensor, nn
from torch.optim import swa_utils

from emabank import EMA, EMABank, recalibrate_batchnorm
from tests.compat.peers import UPDATES, diffusers, module_of, timm

ROOT = Path(__file__).parents[2]
DECAY = 0.9


class Weight(nn.Module):
    """One number, tied or not, that starts at 1; SGD with rate 1 adds `rise(step)` at each step."""

    def __init__(
        self, rise: Callable[[int], float] = lambda step: 1.0, *, tied: bool = False, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.rise, self.steps = rise, 0
        self.value = nn.Parameter(torch.ones(1, dtype=dtype))
        if tied:
            self.alias = self.value

    def loss(self) -> Tensor:
        self.steps += 1
        return -self.rise(self.steps) * self.value.sum()


class Loop:
    """An average in a plain loop. Libraries without a period are called every `every` steps."""

    def __init__(
        self, create: Callable[..., Any], update: Callable[[Any, nn.Module, int], object], *, has_period: bool = False
    ) -> None:
        self.create, self._update, self._has_period = create, update, has_period

    def train(self, model: Weight, steps: int, *, decay: Any = DECAY, every: int = 1, stop_at: int = 0) -> float:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        average = self.create(model, decay, every)
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            model.loss().backward()
            optimizer.step()
            if self._has_period or step % every == 0:
                self._update(average, model, step)
            if step == stop_at:
                saved = io.BytesIO()
                torch.save(average.state_dict(), saved)
                average = self.create(model, decay, every)
                saved.seek(0)
                average.load_state_dict(torch.load(saved, weights_only=True))
        if isinstance(average, EMABank):
            return average.weights(average.names[0])["value"].item()
        return (average.shadow_params[0] if hasattr(average, "shadow_params") else module_of(average).value).item()


class Lightning:
    """The same with Lightning's callback, which writes the average into the module at the end."""

    def train(self, model: Weight, steps: int, *, decay: Any = DECAY, every: int = 1, stop_at: int = 0) -> float:
        if not stop_at:
            return self._fit(model, steps, decay, every, None, [])
        with tempfile.TemporaryDirectory() as folder:
            saver = lightning.pytorch.callbacks.ModelCheckpoint(folder, "half", every_n_train_steps=stop_at)
            self._fit(model, stop_at, decay, every, None, [saver])
            return self._fit(model, steps, decay, every, f"{folder}/half.ckpt", [])

    def _fit(self, model: Weight, steps: int, decay: Any, every: int, checkpoint: str | None, more: list[Any]) -> float:
        averaging = lightning.pytorch.callbacks.EMAWeightAveraging(decay=decay, update_every_n_steps=every)
        trainer = lightning.Trainer(
            max_steps=steps, accelerator="cpu", callbacks=[averaging, *more], logger=False,
            enable_checkpointing=bool(more), enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        module = LightningWeight(model)
        trainer.fit(module, torch.utils.data.DataLoader(torch.zeros(steps, 1)), ckpt_path=checkpoint)
        return module.model.value.item()


class LightningWeight(lightning.LightningModule):
    def __init__(self, model: Weight) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        return self.model.loss()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


def make_bank(model: nn.Module, decay: Any, every: int) -> EMABank:
    averages = decay if isinstance(decay, list) else [EMA(decay, warmup=None)]
    return EMABank(model, averages, every=every, on_nonfinite="skip")


def make_ema_pytorch(model: nn.Module, decay: Any, every: int) -> Any:
    return ema_pytorch.EMA(model, beta=decay, update_after_step=0, update_every=every, min_value=decay)


def make_torch(model: nn.Module, decay: Any, _: int) -> Any:
    return swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(decay))


def make_diffusers(model: nn.Module, decay: Any, _: int) -> Any:
    return diffusers.training_utils.EMAModel(model.parameters(), decay=decay, min_decay=decay)


LIBRARIES: dict[str, Any] = {
    "emabank": Loop(make_bank, lambda bank, *_: bank.update(), has_period=True),
    "torch": Loop(make_torch, UPDATES["torch"]),
    "timm": Loop(lambda model, decay, _: timm.ModelEmaV3(model, decay=decay), UPDATES["timm v3"]),
    "ema-pytorch": Loop(make_ema_pytorch, UPDATES["ema_pytorch"], has_period=True),
    "diffusers": Loop(make_diffusers, UPDATES["diffusers"]),
    "Lightning": Lightning(),
}


# Each function returns whether a library has a property.


def keeps_several_averages(library: Any) -> bool:
    try:
        library.train(Weight(), 2, decay=[0.9, 0.99])
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


def keeps_horizon(library: Any) -> bool:
    """The lag behind a ramp does not depend on how often the average is updated, but for the last few steps."""
    lags = [301.0 - library.train(Weight(), 300, every=every) for every in (1, 4)]
    assert lags[0] == pytest.approx(DECAY / (1 - DECAY), rel=0.15)
    return lags[1] < 1.5 * lags[0]


def averages_bf16(library: Any) -> bool:
    """The weight jumps from 1 to 1.125 at step 5; after seven time constants the average must be there."""
    model = Weight(lambda step: 0.125 * (step == 5), dtype=torch.bfloat16)
    return library.train(model, 700, decay=0.99) == pytest.approx(1.125, abs=0.01)


def averages_tied_weights_once(library: Any) -> bool:
    return library.train(Weight(tied=True), 20) == pytest.approx(library.train(Weight(), 20))


def survives_nan(library: Any) -> bool:
    return math.isfinite(library.train(Weight(lambda step: math.nan if step == 5 else 1.0), 8))


def resumes_exactly(library: Any) -> bool:
    return library.train(Weight(math.sqrt), 16, stop_at=7) == library.train(Weight(math.sqrt), 16)


MEASURED: dict[str, Callable[[Any], bool]] = {
    "several averages, one pass over the weights": keeps_several_averages,
    "same horizon if you average less often": keeps_horizon,
    "float32 averages of a bf16 model": averages_bf16,
    "tied weights averaged once": averages_tied_weights_once,
    "a NaN step cannot ruin the average": survives_nan,
    "resumes exactly": resumes_exactly,
}


def readme_table() -> dict[str, list[bool]]:
    """By row, which libraries have a tick in the README's table."""
    readme = (ROOT / "README.md").read_text()
    body = readme.partition(f"| | {' | '.join(LIBRARIES)} |\n")[2].partition("\n\n")[0].splitlines()[1:]
    rows = [line.strip("| ").split(" | ") for line in body]
    return {name: [cell.startswith("✓") for cell in cells] for name, *cells in rows}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", MEASURED)
def test_a_row_of_the_readme_is_true_of_every_library(row: str) -> None:
    assert [MEASURED[row](library) for library in LIBRARIES.values()] == readme_table()[row]


def test_the_batch_norm_row_of_the_readme_is_true() -> None:
    """Only emabank and torch have a function for it. The batches are of uneven sizes."""
    batches = [torch.randn(8, 1), torch.randn(2, 1) + 5]
    exact = torch.cat(batches).var(0)
    ours, theirs = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    recalibrate_batchnorm(ours, batches)
    swa_utils.update_bn(batches, theirs)
    is_exact = [torch.allclose(layer.running_var, exact, rtol=1e-4) for layer in (ours, theirs)]
    assert [*is_exact, False, False, False, False] == readme_table()["batch norm recomputed, exactly"]


SHARDED = """
import os, sys, warnings, logging
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from tests.compat.test_comparison import LIBRARIES, Weight
warnings.simplefilter("ignore")
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
for library in LIBRARIES.values():
    try:
        sharded = library.train(fully_shard(Weight(), mesh=mesh), 5)
        print("result", abs(sharded - library.train(Weight(), 5)) < 1e-6)
    except (Exception, SystemExit) as error:
        print("result", False)
dist.destroy_process_group()
"""


def test_the_fsdp2_row_of_the_readme_is_true(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", SHARDED, str(tmp_path / "rendezvous")],
        capture_output=True, text=True, cwd=ROOT, timeout=120, check=True,
    )  # fmt: skip
    words = re.findall(r"^result (\w+)", result.stdout, re.MULTILINE)
    assert [word == "True" for word in words] == readme_table()["FSDP2"]
