"""DistributedDataParallel models on real gloo processes: every rank has what one process would have."""

from pathlib import Path

import torch
from on_ranks import data_parallel
from together import together
from torch import Tensor

from emabank import EMABank


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert list(one) == list(other)
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_every_rank_has_the_averages_of_one_process(tmp_path: Path) -> None:
    first, *others = together(data_parallel.like_one_process, folder=tmp_path)
    for other in others:
        for name in first:
            assert_equal(first[name], other[name])


def test_trap46_statistics_are_averaged_over_ranks(tmp_path: Path) -> None:
    (first, seen), (second, also_seen) = together(data_parallel.statistics, folder=tmp_path)
    keys = ("1.running_mean", "1.running_var")
    assert any(not torch.equal(seen[-1][f"module.{key}"], also_seen[-1][f"module.{key}"]) for key in keys), (
        "the ranks had the same statistics, so that nothing is tested"
    )
    for name in first:
        for key in keys:
            assert torch.equal(first[name][key], second[name][key])
    for key in keys:  # the uniform average, by hand
        means = [(a[f"module.{key}"] + b[f"module.{key}"]) / 2 for a, b in zip(seen, also_seen, strict=True)]
        torch.testing.assert_close(first["uniform"][key], torch.stack(means).mean(0))


def test_equal_statistics_stay_as_they_are_over_three_ranks(tmp_path: Path) -> None:
    for before, after in together(data_parallel.equal_statistics, folder=tmp_path, world=3):
        assert torch.equal(before, after)


def test_nothing_is_sent_in_float64_which_an_accelerator_may_not_have(tmp_path: Path) -> None:
    for dtypes in together(data_parallel.sent, folder=tmp_path):
        assert torch.float32 in dtypes
        assert torch.float64 not in dtypes


def test_recalibration_pools_what_all_ranks_see(tmp_path: Path) -> None:
    first, second = together(data_parallel.recalibrating, folder=tmp_path)
    assert_equal(first, second)


def test_a_rank_without_data_has_the_statistics_of_the_others(tmp_path: Path) -> None:
    (batches, first), (also, second) = together(data_parallel.recalibrating_with_nothing_here, folder=tmp_path)
    assert batches == also == 3
    assert_equal(first, second)
    bank = EMABank(data_parallel.build(norm=True), data_parallel.AVERAGES)
    assert not torch.equal(first["1.running_mean"], bank.weights("slow")["1.running_mean"])
