"""A run that several processes train together equals the run of one process with the same batches."""

from pathlib import Path
from typing import Any

import pytest
import torch

from emabank.study.distributed import ProcessGroup
from tests.on_ranks import training
from tests.study.small_runs import config, in_float64, trained
from tests.study.small_runs import one_thread as one_thread
from tests.support.ranks import run_on_ranks

SHORT = {"epochs": 2, "warmup_epochs": 0.4}


@pytest.mark.parametrize(
    ("changes", "world"),
    [
        ({"training": SHORT, "measuring": training.MEASURED}, 2),
        ({"training": SHORT, "data": {"subset": 163}}, 3),  # 130 images: the last batch has two
        ({"training": {**SHORT, "network": "vgg-small"}}, 2),
        ({"training": {**SHORT, "network": "whitened-cnn"}}, 2),
        ({"training": SHORT, "trained_on": "100%", "measuring": training.MEASURED}, 3),
    ],
    ids=["resnet8", "a last batch of two", "without batch norm", "whitened", "refit"],
)
def test_several_processes_train_the_same_run_as_one(changes: dict[str, Any], world: int, tmp_path: Path):
    alone = trained(config(**changes), make_model=in_float64(config(**changes)))
    everywhere = run_on_ranks(training.training, changes, folder=tmp_path, world=world)
    for live, averages, measured, losses in everywhere:
        assert_close(live, alone.model.state_dict())
        for name, weights in averages.items():
            assert_close(weights, alone.bank.weights(name))
        assert losses == pytest.approx(alone.losses, rel=1e-9)
        expected = [*alone.measured, *alone.test_curves]
        assert [metric[:5] for metric in measured] == [metric[:5] for metric in expected]
        for mine, other in zip(measured, expected, strict=True):
            assert mine.value == pytest.approx(other.value, rel=1e-6)
    first = everywhere[0]
    for other in everywhere[1:]:  # every process could write the results
        assert all(torch.equal(first[0][key], other[0][key]) for key in first[0])
        assert first[2:] == other[2:]


def assert_close(tensors: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert list(tensors) == list(expected)
    for key, value in expected.items():
        torch.testing.assert_close(
            tensors[key], value, rtol=1e-9, atol=1e-9, msg=lambda text, key=key: f"{key}: {text}"
        )


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 5, 7, 100])
def test_shares_cover_everything_in_order_and_differ_by_at_most_one(world: int, count: int):
    shares = [range(count)[ProcessGroup(rank, world).share(count)] for rank in range(world)]
    assert [place for share in shares for place in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
