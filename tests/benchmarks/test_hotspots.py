"""The parts of a step add up to it, and each is what the hooks around it saw."""

import time
from types import SimpleNamespace

import hotspots
import pytest
import torch
from recipes import cifar_like

from emabank.bench.kept import read_result
from emabank.study.data.splits import make_parts


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_parts_of_a_step_add_up_to_it():
    found = hotspots.measure("resnet8", make_parts(cifar_like(40), subset=40), steps=4, batch=4)
    assert list(found.phases) == list(hotspots.PHASES)
    assert sum(share.mean for share in found.phases.values()) == pytest.approx(1)
    assert all(share.mean >= 0 for share in found.phases.values())
    assert sum(found.operators.values()) == pytest.approx(1)
    assert any("convolution_backward" in name for name in found.operators)
    assert found.phases["loss and backward"].median > found.phases["rest"].median


def test_what_is_slow_is_found(monkeypatch):
    make = hotspots.study_training

    def with_slow_optimizer(*given, **named):
        training = make(*given, **named)
        training.optimizer.register_step_post_hook(lambda *_: time.sleep(0.05))  # before the mark that ends its part
        return training

    monkeypatch.setattr(hotspots, "study_training", with_slow_optimizer)
    found = hotspots.measure("resnet8", make_parts(cifar_like(40), subset=40), steps=3, batch=2)
    assert found.phases["optimizer"].median > 0.4


def test_operators_are_the_largest_and_all_others():
    events = [SimpleNamespace(key=f"op{n}", self_cpu_time_total=n) for n in range(1, 6)]
    assert hotspots._operators(events, most=2) == {"op5": 5 / 15, "op4": 4 / 15, "all others": pytest.approx(6 / 15)}


def test_the_command_keeps_a_result(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hotspots, "cifar_like", lambda images: cifar_like(40))
    monkeypatch.setattr(hotspots, "make_parts", lambda dataset, subset: make_parts(dataset, subset=40))
    kept = tmp_path / "hotspots.json"
    assert hotspots.main(["--networks", "resnet8", "--steps", "2", "--batch", "4", "--json", str(kept)]) == 0
    found = read_result(kept)
    assert list(found["ratios"]) == ["hotspots/resnet8/next-batch/of-step", "hotspots/resnet8/rest/of-step"]
    assert found["results"][0]["network"] == "resnet8"
    assert "loss and backward" in capsys.readouterr().out
