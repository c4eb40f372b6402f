"""DDP and FSDP2, in real gloo processes."""

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from emabank import EMABank
from tests.on_ranks import data_parallel, sharded
from tests.support.oracle import assert_equal
from tests.support.ranks import FSDP, run_on_ranks


def test_every_rank_has_the_averages_of_one_process(tmp_path: Path) -> None:
    first, second = run_on_ranks(data_parallel.compare_with_one_process, folder=tmp_path)
    assert_equal(first, second)


def test_trap46_statistics_are_averaged_over_ranks(tmp_path: Path) -> None:
    (first, seen), (second, also_seen) = run_on_ranks(data_parallel.statistics, folder=tmp_path)
    keys = ("1.running_mean", "1.running_var")
    assert any(not torch.equal(seen[-1][f"module.{key}"], also_seen[-1][f"module.{key}"]) for key in keys), (
        "this tests nothing if the ranks have the same statistics"
    )
    for name in first:
        for key in keys:
            assert torch.equal(first[name][key], second[name][key])
    for key in keys:  # the uniform average, by hand
        means = [(a[f"module.{key}"] + b[f"module.{key}"]) / 2 for a, b in zip(seen, also_seen, strict=True)]
        torch.testing.assert_close(first["uniform"][key], torch.stack(means).mean(0))


def test_trap46_statistics_of_other_norm_layers_are_averaged_over_ranks_too(tmp_path: Path) -> None:
    (first, seen), (second, also_seen) = run_on_ranks(data_parallel.instance_norm, folder=tmp_path)
    for key in ("1.running_mean", "1.running_var"):
        mean = (seen[f"module.{key}"] + also_seen[f"module.{key}"]) / 2
        assert not torch.equal(seen[f"module.{key}"], mean), "this tests nothing if the ranks have the same statistics"
        torch.testing.assert_close(first[key], mean)
        assert torch.equal(first[key], second[key])


def test_equal_statistics_stay_exactly_equal_over_three_ranks(tmp_path: Path) -> None:
    for before, after in run_on_ranks(data_parallel.equal_statistics, folder=tmp_path, world=3):
        assert torch.equal(before, after)


def test_nothing_is_sent_in_float64(tmp_path: Path) -> None:
    for dtypes in run_on_ranks(data_parallel.dtypes_sent, folder=tmp_path):
        assert torch.float32 in dtypes
        assert torch.float64 not in dtypes


def test_recalibration_pools_the_data_of_all_ranks(tmp_path: Path) -> None:
    first, second = run_on_ranks(data_parallel.recalibrate, folder=tmp_path)
    assert_equal(first, second)


def test_a_rank_without_data_gets_the_pooled_statistics(tmp_path: Path) -> None:
    (count, first), (other_count, second) = run_on_ranks(data_parallel.recalibrate_with_one_empty_rank, folder=tmp_path)
    assert count == other_count == 3
    assert_equal(first, second)
    bank = EMABank(data_parallel.build(norm=True), data_parallel.AVERAGES)
    assert not torch.equal(first["1.running_mean"], bank.weights("slow")["1.running_mean"])


# Sharded models -------------------------------------------------------------------------------------------------------


@FSDP
def test_trap47_averages_of_shards_equal_the_unsharded_ones(tmp_path: Path) -> None:
    run_on_ranks(sharded.check_averages, folder=tmp_path, world=3)  # uneven shards, and empty ones


@FSDP
def test_an_update_of_a_sharded_model_does_not_communicate(tmp_path: Path) -> None:
    assert run_on_ranks(sharded.communication_of_an_update, folder=tmp_path) == [{}, {}]


def test_ranks_agree_to_skip_a_nan_sample(tmp_path: Path) -> None:
    assert run_on_ranks(sharded.update_with_nan_on_one_rank, folder=tmp_path) == [(False, 1), (False, 1)]


@FSDP
def test_trap55_applied_works_while_parameters_are_gathered(tmp_path: Path) -> None:
    run_on_ranks(sharded.check_applied, folder=tmp_path)


@FSDP
def test_trap46_all_ranks_evaluate_an_average_with_the_same_statistics(tmp_path: Path) -> None:
    run_on_ranks(sharded.check_statistics_in_an_evaluation, folder=tmp_path)


@FSDP
def test_trap56_weights_loaded_after_the_bank_was_built_are_noticed(tmp_path: Path) -> None:
    run_on_ranks(sharded.check_warning_of_loaded_weights, folder=tmp_path)


@FSDP
def test_an_exception_in_a_forward_pass_restores_the_live_weights(tmp_path: Path) -> None:
    run_on_ranks(sharded.check_applied_with_an_exception, folder=tmp_path)


@FSDP
def test_recalibration_of_a_sharded_model_pools_the_data_of_all_ranks(tmp_path: Path) -> None:
    run_on_ranks(sharded.check_recalibration, folder=tmp_path)


@FSDP
def test_copy_to_plain_and_sharded_models(tmp_path: Path) -> None:
    run_on_ranks(sharded.check_copy_to, folder=tmp_path)


@FSDP
def test_a_bank_saved_on_two_ranks_loads_on_one_two_or_three(tmp_path: Path) -> None:
    stores = [tmp_path / f"store-{number}" for number in range(4)]
    for store in stores:
        store.mkdir()
    saved = run_on_ranks(sharded.save, tmp_path / "checkpoint", folder=stores[0])[0]
    for world in (1, 2, 3):
        ranks = run_on_ranks(sharded.load, tmp_path / "checkpoint", 6, folder=stores[world], world=world)
        for updates, loaded in ranks:
            assert updates == 3
            for name, weights in saved.items():
                for key, value in weights.items():
                    if "num_batches" not in key:  # a live buffer, not in the bank's state
                        assert torch.equal(loaded[name][key], value), (world, name, key)


@FSDP
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_bank_saved_on_two_ranks_loads_without_distributed(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    saved = run_on_ranks(sharded.save, tmp_path / "checkpoint", folder=ranks)[0]
    bank = EMABank(sharded.build(), sharded.AVERAGES, every=2)
    dcp.load({"bank": bank}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    assert (bank.num_steps, bank.num_updates) == (6, 3)
    for name, weights in saved.items():
        for key, value in bank.weights(name).items():
            if "num_batches" not in key:
                assert torch.equal(weights[key], value), (name, key)


def test_averages_of_a_tensor_parallel_model_are_evaluated_in_place_and_in_a_copy(tmp_path: Path) -> None:
    run_on_ranks(sharded.check_tensor_parallel, folder=tmp_path)


def test_an_unsharded_state_loads_into_a_sharded_bank_and_back(tmp_path: Path) -> None:
    run_on_ranks(sharded.check_loading_an_unsharded_state, folder=tmp_path)
