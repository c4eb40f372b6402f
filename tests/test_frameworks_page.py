"""The page about frameworks: its Python blocks run, and a bank gives the averages of the libraries that it names."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import run_python
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from emabank import EMA, EMABank, Uniform

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "integrations.md").read_text()
FRAMEWORKS = ("lightning", "transformers", "accelerate")


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*smaller than the logging interval")
@pytest.mark.filterwarnings("ignore:.*`isinstance.treespec, LeafSpec.`")
@pytest.mark.filterwarnings("ignore:.*pin_memory. argument is set as true")
def test_the_python_blocks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for framework in FRAMEWORKS:
        pytest.importorskip(framework, reason=f"the extra {framework} is not installed")
    monkeypatch.chdir(tmp_path)
    assert run_python(PAGE, "integrations.md") == 4
    said = capsys.readouterr().out
    assert said.count("Best(criterion=") == 3
    assert (tmp_path / "run" / "checkpoint-24" / "emabank.pt").is_file()


def test_every_extra_that_it_names_is_there() -> None:
    asked = set(re.findall(r"emabank\[(\w+)\]", PAGE))
    assert asked == set(FRAMEWORKS)
    assert asked <= set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))


# What the table says of other libraries ------------------------------------------------------------------------------


class Timm:
    """timm's ModelEmaV3 in float64: `update(model, step)` copies the weights at step 1."""

    def __init__(self, weight: Tensor, decay: float, *, use_warmup: bool = False) -> None:
        self.average, self.decay, self.use_warmup = weight.detach().double(), decay, use_warmup

    def update(self, weight: Tensor, step: int) -> None:
        cap = 1 - step ** -(2 / 3) if self.use_warmup else 1.0 if step > 1 else 0.0
        self.average = torch.lerp(weight.detach().double(), self.average, min(self.decay, cap))


class Torch:
    def __init__(self, weight: Tensor, **keywords: Any) -> None:
        self.averaged = AveragedModel(nn.ParameterList([weight]), **keywords)

    def update(self, weight: Tensor, step: int) -> None:
        self.averaged.update_parameters(nn.ParameterList([weight]))

    @property
    def average(self) -> Tensor:
        return self.averaged.module[0].detach().double()


@pytest.mark.parametrize(
    ("peer", "rule"),
    [
        (Torch, Uniform()),
        (partial(Torch, multi_avg_fn=get_ema_multi_avg_fn(0.8)), EMA(0.8, warmup=None, start=1)),
        (partial(Timm, decay=0.8), EMA(0.8, warmup=None, start=1)),
        (partial(Timm, decay=0.6, use_warmup=True), EMA(0.6, warmup="power", start=1)),
    ],
)
def test_a_bank_gives_the_averages_of_other_libraries(peer: Any, rule: Any) -> None:
    model = nn.Linear(4, 3)
    theirs, bank = peer(model.weight), EMABank(model, {"average": rule}, every=1)
    for step in range(1, 9):
        nn.init.normal_(model.weight)
        theirs.update(model.weight, step)
        bank.update()
        torch.testing.assert_close(bank.weights("average")["weight"].double(), theirs.average, rtol=1e-5, atol=1e-6)
