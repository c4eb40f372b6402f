"""The training loop, its averages, measurements and choices against plain loops."""

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, log_loss
from torch import Tensor, nn

from emabank.study.config import Keep
from emabank.study.evaluate import EpochMetric
from emabank.study.train import Training
from tests.study.small_runs import (
    NAMES,
    config,
    logits_of,
    network_with,
    parts_of,
    plain_training,
    recalibrated,
    trained,
    training_of,
    weights_of_each_epoch,
    with_random_test_images,
)
from tests.study.small_runs import one_thread as one_thread
from tests.support.oracle import EMAOracle, Oracle, assert_close, constant, live_weights, states_equal

ALL = {"recompute": "each-epoch", "on_train": True, "test_curves": True}


@pytest.fixture(scope="module")
def run() -> tuple[Training, dict[tuple[str, int], dict[str, Tensor]]]:
    """A finished training with everything measured, and its weights at the end of each epoch."""
    return weights_of_each_epoch(config(measuring=ALL))


def values(measured: Sequence[EpochMetric], split: str, metric: str, batchnorm: str) -> dict[tuple[str, int], float]:
    chosen = [m for m in measured if (m.split, m.metric, m.batchnorm) == (split, metric, batchnorm)]
    found = {(m.weights, m.epoch): m.value for m in chosen}
    assert len(found) == len(chosen), "nothing is measured twice"
    return found


# The training itself


@pytest.mark.parametrize("network", ["resnet8", "vgg-small"])
@pytest.mark.parametrize("measuring", [{}, ALL], ids=["little", "all"])
def test_averaging_and_measuring_do_not_change_the_training_bit_for_bit(network, measuring):
    run_config = config(training={"network": network}, measuring=measuring, averages={"every": 2}, seed=3)
    training = trained(run_config)
    assert training.steps == training.bank.num_steps == 20
    assert states_equal(training.model.state_dict(), plain_training(run_config).state_dict())


def test_every_step_has_the_learning_rate_of_the_schedule():
    training, rates = training_of(config(rate=0.4)), []
    training.optimizer.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    training.run()
    cosine = [0.2 * (1 + math.cos(math.pi * step / 18)) for step in range(18)]
    assert rates == pytest.approx([0.2, 0.4, *cosine])
    assert [epoch["rate"] for epoch in training.history()] == rates[4::5]


def test_the_training_loss_of_an_epoch_is_the_mean_over_its_images():
    run_config, seen = config(data={"subset": 190}), []
    training, twin = training_of(run_config), training_of(run_config)
    training.model.register_forward_hook(
        lambda model, _, output: seen.append(output.detach()) if model.training else None
    )
    training.run()
    for epoch in training.history():
        labels = torch.cat([labels for _, labels in twin.loader])
        logits, seen = torch.cat(seen[:5]).double(), seen[5:]
        assert epoch["training_loss"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-6)
    assert not seen


def test_trap58_a_last_batch_of_one_image_joins_the_batch_before():
    training = trained(config(data={"subset": 201}, training={"epochs": 1}))
    assert len(parts_of(training.config).train) == 5 * 32 + 1
    assert training.steps == 5
    assert np.isfinite(training.losses).all()


# The averages


@pytest.mark.parametrize(
    ("averages", "decays"),
    [
        ({}, {name: 0.5 ** (1 / (share / 100 * 20)) for name, share in zip(NAMES, (5, 20, 60), strict=True)}),
        ({"every": 3}, {name: 0.5 ** (3 / (share / 100 * 20)) for name, share in zip(NAMES, (5, 20, 60), strict=True)}),
        ({"decays": (0.9, 0.5), "every": 3, "decay_warmup": "steps"}, {"ema-0.5": 0.5, "ema-0.9": 0.9}),
        ({"decays": (0.9, 0.5), "every": 2, "decay_warmup": "updates"}, {"ema-0.5": 0.5, "ema-0.9": 0.9}),
    ],
    ids=["half-lives", "every third step", "warm-up in steps", "warm-up in updates"],
)
def test_trap35_averages_follow_their_definition_with_one_step_count_over_all_epochs(averages, decays):
    run_config = config(averages=averages)
    every, unit = run_config.recipe.averages.every, run_config.recipe.averages.decay_warmup
    oracles: dict[str, Oracle] = {}

    def at_start(model: nn.Module) -> None:
        for name, decay in decays.items():
            warmup = None if unit == "none" else unit
            per_step = constant(decay ** (1 / every), warmup=warmup, every=every)
            oracles[name] = EMAOracle(live_weights(model), every, per_step)

    def after_step(model: nn.Module) -> None:
        for oracle in oracles.values():
            oracle.after_step(live_weights(model))

    plain_training(run_config, at_start=at_start, after_step=after_step)
    training = trained(run_config)
    assert training.bank.names == tuple(decays)
    assert training.bank.num_updates == 20 // every  # fewer if the 5 steps of an epoch were counted anew
    for name, oracle in oracles.items():
        assert_close(training.bank.weights(name, batchnorm="averaged"), oracle.value())


# Measurements


def test_measurements_equal_those_of_a_network_with_the_same_weights(run):
    training, weights = run
    parts = parts_of(training.config)
    assert parts.validation is not None
    for split, part in (("val", parts.validation), ("train", parts.train)):
        labels_by_prefix = {"": part.labels} if split == "train" else {"": part.clean, "noisy_": part.labels}
        for (prefix, labels), metric in product(labels_by_prefix.items(), ("accuracy", "loss")):
            own, averaged = (
                values(training.measured, split, prefix + metric, batchnorm) for batchnorm in ("own", "averaged")
            )
            found = own | averaged
            assert found.keys() == {(name, epoch) for name in ("live", *NAMES) for epoch in range(1, 5)}
            for place, value in found.items():
                logits = logits_of(network_with(training.config, weights[place]), part, parts)
                if metric == "accuracy":
                    assert value == accuracy_score(labels, logits.argmax(1))
                else:
                    assert value == pytest.approx(log_loss(labels, logits.double().softmax(1), labels=range(10)))


def test_recomputed_statistics_are_those_of_the_training_images(run):
    training, weights = run
    parts = parts_of(training.config)
    assert parts.validation is not None
    found = values(training.measured, "val", "loss", "recomputed")
    assert training.test_curves == [], "only runs on all images have test curves"
    assert found.keys() == {(name, epoch) for name in NAMES for epoch in range(1, 5)}
    for place, value in found.items():
        model = recalibrated(network_with(training.config, weights[place]), parts)
        logits = logits_of(model, parts.validation, parts)
        want = log_loss(parts.validation.clean, logits.double().softmax(1), labels=range(10))
        assert value == pytest.approx(want, rel=1e-5)


def test_memorised_and_clean_accuracy_count_wrong_and_right_labels(run):
    training, weights = run
    parts = parts_of(training.config)
    train = parts.train
    for metric in ("memorised", "clean_accuracy"):
        chosen = [i for i in range(len(train)) if (train.labels[i] != train.clean[i]) == (metric == "memorised")]
        for place, value in values(training.measured, "train", metric, "averaged").items():
            predicted = logits_of(network_with(training.config, weights[place]), train, parts).argmax(1)
            assert value == sum(int(predicted[i] == train.labels[i]) for i in chosen) / len(chosen)


def test_networks_without_batch_norm_recompute_nothing():
    training = trained(config(training={"network": "vgg-small", "epochs": 1}, measuring=ALL))
    assert {m.batchnorm for m in training.measured} == {"own", "averaged"}
    assert "recomputed" not in {selected.keep.batchnorm for selected in training.kept()}


# Choices and kept weights


def test_the_choice_equals_a_search_through_the_measurements(run):
    measured, chosen = run[0].measured, run[0].selector.selected()
    for kind, metric in (("live", "accuracy"), ("noisy-live", "noisy_accuracy")):
        accuracies = values(measured, "val", metric, "own")
        _, epoch = max(accuracies, key=accuracies.__getitem__)  # the earliest on ties
        assert chosen[kind] == {"epoch": epoch, "value": accuracies["live", epoch]}
    for metric, best in (("accuracy", max), ("loss", min), ("noisy_accuracy", max), ("noisy_loss", min)):
        table = values(measured, "val", metric, "averaged")
        name, epoch = best(table, key=table.__getitem__)
        assert chosen[metric.replace("_", "-")] == {"average": name, "epoch": epoch, "value": table[name, epoch]}


def test_kept_weights_are_those_of_the_chosen_epoch(run):
    training, weights = run
    chosen, slowest = training.selector.selected(), NAMES[-1]
    kept = {selected.keep.name: selected for selected in training.kept()}
    want = {"live-last": ("live", 4)}
    want |= {f"live-{criterion}": ("live", chosen[name]["epoch"])
             for criterion, name in (("accuracy", "live"), ("loss", "live-loss"))}  # fmt: skip
    for criterion in ("accuracy", "loss"):
        place = chosen[criterion]["average"], chosen[criterion]["epoch"]
        want |= {f"{place[0]}-{criterion}": place, f"{slowest}-recomputed-{criterion}": (slowest, place[1])}
    want["live-noisy-accuracy"] = "live", chosen["noisy-live"]["epoch"]
    for criterion in ("noisy-accuracy", "noisy-loss"):
        place = chosen[criterion]["average"], chosen[criterion]["epoch"]
        want[f"{place[0]}-{criterion}"] = place
    assert kept.keys() == want.keys()
    for name, place in want.items():
        assert (kept[name].keep.weights, kept[name].keep.epoch) == place
        assert states_equal(kept[name].tensors, weights[place]), name


def test_a_run_on_all_images_keeps_the_given_weights():
    places = [("live", 1, "own", "accuracy"), ("ema-5%", 2, "averaged", "loss"), ("ema-60%", 3, "recomputed", "loss")]
    keep = tuple(Keep(weights=w, epoch=e, batchnorm=b, selected_by=s) for w, e, b, s in places)
    training, weights = weights_of_each_epoch(config(trained_on="100%", keep=keep))
    last, *chosen = training.kept()
    assert last.keep == Keep(weights="live", epoch=4, batchnorm="own", selected_by="last")
    assert states_equal(last.tensors, weights["live", 4])
    assert tuple(kept.keep for kept in chosen) == keep
    assert all(states_equal(kept.tensors, weights[kept.keep.weights, kept.keep.epoch]) for kept in chosen)
    assert training.selector.selected() == {}


def test_the_slowest_average_is_kept_once_if_chosen_in_a_network_without_batch_norm():
    run_config = config(
        data={"noise": 0.0}, training={"network": "vgg-small", "epochs": 2}, averages={"half_lives": (5.0,)}
    )
    names = [kept.keep.name for kept in trained(run_config).kept()]
    assert names == ["live-last", "live-accuracy", "live-loss", "ema-5%-accuracy", "ema-5%-loss"]


@pytest.mark.parametrize("trained_on", ["80%", "100%"])
def test_trap52_test_images_affect_neither_the_choice_nor_the_kept_weights(trained_on):
    run_config = config(measuring=ALL, trained_on=trained_on)
    training, other = trained(run_config), trained(run_config, parts=with_random_test_images(parts_of(run_config)))
    assert other.selector.selected() == training.selector.selected()
    assert other.measured == training.measured
    for a, b in zip(other.kept(), training.kept(), strict=True):
        assert a.keep == b.keep and states_equal(a.tensors, b.tensors)
    if trained_on == "100%":
        assert other.test_curves != training.test_curves, "the curves do depend on the test images"
