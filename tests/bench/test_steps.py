"""What an update costs of a step: shares out of seconds, who takes part, and what a step is."""

import pytest
import torch

from emabank.bench import peers, steps, zoo
from emabank.bench.peers import BANK
from emabank.bench.steps import STEP, Share, measure_steps, shares_of, steps_table, training_step


def test_a_share_is_taken_within_a_round_and_within_the_runs_of_its_contestant():
    groups = [
        {STEP: [1.0, 10.0], BANK: [0.1, 1.0], "slow": [0.5, 5.0]},
        {STEP: [2.0], BANK: [0.2], "slower": [2.0]},
    ]
    step, shares = shares_of(groups)
    assert step.median == 2000.0
    assert [(share.name, share.of_step.median) for share in shares] == [(BANK, 0.1), ("slow", 0.5), ("slower", 1.0)]
    assert shares[0].milliseconds.median == pytest.approx(200.0)


@pytest.mark.parametrize("name", ["resnet20", "resnet20-bf16", "gpt", "gpt-bf16"])
def test_a_step_trains_every_parameter(name, monkeypatch):
    monkeypatch.setitem(zoo.ZOO, "gpt", lambda: zoo.GPT(vocabulary=11, context=64, width=8, heads=2, depth=1))
    model = zoo.build(name)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step, words = training_step(model, batch=2)
    step()
    assert words.startswith("2 ")
    assert all(parameter.grad is None for parameter in model.parameters())
    moved = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    # Not a bias that softmax does not feel; and bfloat16 rounds small moves of numbers near 1 away.
    assert sum(moved) >= (len(moved) / 2 if name.endswith(zoo.BF16) else len(moved) - 2)


def test_a_thousand_small_tensors_can_be_trained_too():
    model = zoo.build("small1000")
    before = model[-1].bias.detach().clone()
    training_step(model, batch=2)[0]()
    assert not torch.equal(before, model[-1].bias)


def test_a_step_comes_before_every_update_and_is_not_in_its_time(monkeypatch):
    def nobody(package, module):
        raise peers.NotAvailable(f"no {package}")

    monkeypatch.setattr("emabank.bench.interleave.FEWEST_ROUNDS", 2)
    found = measure_steps("resnet20", 2, peers.all_peers(nobody), seconds=0.01, batch=2)
    names = [share.name for share in found.shares]
    assert names[0] == BANK
    assert set(names[1:]) == {"torch AveragedModel", "torch AveragedModel, buffers"}
    assert found.share(BANK).of_step.median < 1
    text = steps_table(found)
    assert "training step on 2 images" in text
    assert "timm ModelEmaV3: no timm" in text


def test_an_update_at_every_sixteenth_step_costs_a_sixteenth():
    spread = steps.Spread(0.16, 0.08, 0.32, 0.2)
    case = steps.Case("m", 5, 1, 1, 3, None, 0, 0.0, ())
    text = steps_table(steps.Steps(case, "2 images", spread, [Share(BANK, spread, spread)]))
    assert "16 % (8 %–32 %)" in text
    assert "1 % (0.5 %–2 %)" in text
