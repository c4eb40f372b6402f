"""DDP and FSDP2, in real gloo processes."""

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from emabank import EMABank
from tests.on_ranks import data_parallel, sharded
from tests.support.oracle import assert_equal
from tests.support.ranks import FSDP, together


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


# Sharded models -------------------------------------------------------------------------------------------------------


@FSDP
def test_trap47_averages_of_shards_equal_the_unsharded_ones(tmp_path: Path) -> None:
    together(sharded.averages_of_shards, folder=tmp_path, world=3)  # uneven shards, and empty ones


@FSDP
def test_an_update_says_nothing_to_other_processes(tmp_path: Path) -> None:
    assert together(sharded.update_is_silent, folder=tmp_path) == [{}, {}]


def test_processes_agree_to_skip(tmp_path: Path) -> None:
    assert together(sharded.skipping_agrees, folder=tmp_path) == [(0, False), (0, False)]


@FSDP
def test_trap55_applied_is_not_left_gathered(tmp_path: Path) -> None:
    together(sharded.applying, folder=tmp_path)


@FSDP
def test_trap56_weights_loaded_after_the_bank_was_built_are_noticed(tmp_path: Path) -> None:
    assert together(sharded.loading_after_building, folder=tmp_path) == [True, True]


@FSDP
def test_an_exception_in_a_forward_pass_leaves_no_average_behind(tmp_path: Path) -> None:
    together(sharded.applying_survives_an_exception, folder=tmp_path)


@FSDP
def test_recalibration_is_shared(tmp_path: Path) -> None:
    together(sharded.recalibrating, folder=tmp_path)


@FSDP
def test_what_cannot_be_done_names_what_can(tmp_path: Path) -> None:
    for module, functional in together(sharded.refused, folder=tmp_path):
        assert all(word in module for word in ("weights", "copy_to", "applied"))
        assert all(word in functional for word in ("call", "applied"))


@FSDP
def test_copy_to_plain_and_sharded_models(tmp_path: Path) -> None:
    together(sharded.copying, folder=tmp_path)


@FSDP
def test_saved_on_two_ranks_and_loaded_on_others(tmp_path: Path) -> None:
    stores = [tmp_path / f"store-{number}" for number in range(4)]
    for store in stores:
        store.mkdir()
    saved = together(sharded.saving, tmp_path / "checkpoint", folder=stores[0])[0]
    for world in (1, 2, 3):
        answers = together(sharded.loading, tmp_path / "checkpoint", 6, folder=stores[world], world=world)
        for updates, loaded in answers:
            assert updates == 3
            for name, weights in saved.items():
                for key, value in weights.items():
                    if "num_batches" not in key:  # a live buffer, which is no part of the bank's state
                        assert torch.equal(loaded[name][key], value), (world, name, key)


@FSDP
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_saved_on_two_ranks_and_loaded_without_any(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    saved = together(sharded.saving, tmp_path / "checkpoint", folder=ranks)[0]
    bank = EMABank(sharded.build(), sharded.AVERAGES, every=2)
    dcp.load({"bank": bank}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    assert (bank.num_steps, bank.num_updates) == (6, 3)
    for name, weights in saved.items():
        for key, value in bank.weights(name).items():
            if "num_batches" not in key:
                assert torch.equal(weights[key], value), (name, key)


@FSDP
def test_killed_while_the_others_save_no_half_checkpoint_is_taken_for_one_and_the_restart_resumes(
    tmp_path: Path,
) -> None:
    for name in ("stores", "killed", "whole"):
        (tmp_path / name).mkdir()
    stores = [tmp_path / "stores" / str(number) for number in range(3)]
    for store in stores:
        store.mkdir()
    expected = together(sharded.resuming, tmp_path / "whole", False, folder=stores[0])[0]
    with pytest.raises(AssertionError, match="rank 1 has died with exit code -9|on rank 0:(?s:.)*Connection"):
        together(sharded.resuming, tmp_path / "killed", True, folder=stores[1])
    assert sorted(path.parent.name for path in (tmp_path / "killed").glob("*/.metadata")) == ["2", "4"]
    for resumed in together(sharded.resuming, tmp_path / "killed", False, folder=stores[2]):
        for name, weights in expected.items():
            for key, value in weights.items():
                assert torch.equal(resumed[name][key], value), (name, key)


def test_a_whole_state_goes_into_a_sharded_bank_and_back(tmp_path: Path) -> None:
    together(sharded.loading_whole_state, folder=tmp_path)
