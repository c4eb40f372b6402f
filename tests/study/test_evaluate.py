"""Predictions of all kept weights, and their rows, checked against scipy and scikit-learn."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.metrics import accuracy_score, log_loss

from emabank.study.config import Keep
from emabank.study.data.splits import stratified_subset
from emabank.study.evaluate import (
    EpochMetric,
    KeptPredictions,
    is_transferred,
    predict_kept,
    rows_of_history,
    rows_of_kept,
)
from emabank.study.run_job import network_of
from emabank.study.runs.rows import Row
from emabank.study.train import Training
from tests.study.small_runs import config, digits, network_with, parts_of, recalibrated, trained
from tests.study.small_runs import one_thread as one_thread
from tests.support.oracle import states_equal

NOISY = {"noisy_accuracy", "noisy_loss"}
EVERYWHERE = {"accuracy", "loss", "ece", "ece_if_calibrated"}
SCALED = {"ece_ts", "loss_ts", "ece_ts_noisy", "loss_ts_noisy"}
TEMPERATURES = {"temperature", "temperature_noisy"}
ON_TRAIN = {"clean_accuracy", "memorised"}
RUN = "d8cb8c03b3709a2a"


@pytest.fixture(scope="module")
def training() -> Training:
    return trained(config())


@pytest.fixture(scope="module")
def kept(training: Training) -> dict[str, KeptPredictions]:
    make_model = network_of(training.config, digits()[0])
    return {entry.keep.name: entry for entry in predict_kept(training, make_model)}


def values(rows: list[Row]) -> dict[tuple[str, str], float | None]:
    found = {(row.split, row.metric): row.value for row in rows}
    assert len(found) == len(rows), "every metric is measured once"
    return found


def rows_of(training: Training, entry: KeptPredictions) -> dict[tuple[str, str], float | None]:
    return values(rows_of_kept(RUN, training.config, entry, parts_of(training.config)))


def expected_calibration_error(probabilities: np.ndarray, right: np.ndarray, bins: int = 5) -> float:
    """From its definition: sort by confidence, cut into bins of equal size, and weigh their distances."""
    confidence = probabilities.max(axis=1)
    order = np.argsort(confidence, kind="stable")
    cut = zip(np.split(confidence[order], bins), np.split(right[order], bins), strict=True)
    return sum(abs(hits.mean() - confidences.mean()) * len(hits) for confidences, hits in cut) / len(right)


# Predictions


def test_models_have_the_kept_weights_and_recomputed_batchnorm_statistics(training, kept):
    parts = parts_of(training.config)
    recomputed = 0
    for selected in training.kept():
        found = kept[selected.keep.name].model.state_dict()
        if selected.keep.batchnorm != "recomputed":
            assert states_equal(found, selected.tensors)
            continue
        recomputed += 1
        model = recalibrated(network_with(training.config, selected.tensors), parts)
        for key, tensor in model.state_dict().items():
            if not key.endswith("num_batches_tracked"):
                torch.testing.assert_close(found[key], tensor, rtol=2e-5, atol=1e-6, msg=key)
    assert recomputed == 2


def test_final_predictions_are_on_all_test_images_and_the_curves_training_images():
    run_config = config(measuring={"curve_images": 30}, training={"epochs": 1})
    training = trained(run_config)
    parts, measured = parts_of(run_config), training.measured_parts
    last = next(predict_kept(training, network_of(run_config, digits()[0])))
    sizes = {split: len(labels) for split, (_, labels) in last.predictions.items()}
    assert sizes == {"train": 30, "val": 40, "test": 50}
    chosen = stratified_subset(parts.train.clean, 30, seed=0)
    assert np.array_equal(last.predictions["train"][1], parts.train.labels[chosen].numpy())
    found = values(rows_of_kept(RUN, run_config, last, measured))
    logits, labels = last.predictions["train"]
    assert found["train", "accuracy"] == accuracy_score(labels, logits.argmax(axis=1))


# Rows of kept weights


def test_every_part_has_all_its_metrics(training: Training, kept: dict[str, KeptPredictions]):
    for entry in kept.values():
        found = rows_of(training, entry)
        assert {metric for split, metric in found if split == "train"} == EVERYWHERE | SCALED | ON_TRAIN
        assert {metric for split, metric in found if split == "val"} == EVERYWHERE | SCALED | TEMPERATURES | NOISY
        assert {metric for split, metric in found if split == "test"} == EVERYWHERE | SCALED
        assert all(isinstance(value, float) and np.isfinite(value) for value in found.values())


def test_a_refit_without_noise_has_no_validation_temperature_or_memorisation():
    run_config = config(trained_on="100%", data={"noise": 0.0}, training={"epochs": 1, "network": "vgg-small"})
    training = trained(run_config)
    (last,) = predict_kept(training, network_of(run_config, digits()[0]))
    found = rows_of(training, last)
    assert found.keys() == {("train", "clean_accuracy")} | {(s, m) for s in ("train", "test") for m in EVERYWHERE}


def test_accuracy_loss_and_calibration_match_independent_implementations(training, kept):
    for entry in kept.values():
        found = rows_of(training, entry)
        for split in ("train", "val", "test"):
            logits, labels = entry.predictions[split]
            probabilities = softmax(logits.astype(np.float64), axis=1)
            right = logits.argmax(axis=1) == labels
            assert found[split, "accuracy"] == accuracy_score(labels, logits.argmax(axis=1))
            assert found[split, "loss"] == pytest.approx(log_loss(labels, probabilities, labels=range(10)))
            assert found[split, "ece"] == pytest.approx(expected_calibration_error(probabilities, right))
            draws = np.random.default_rng(0).random((300, len(right))) < probabilities.max(axis=1)
            floor = np.mean([expected_calibration_error(probabilities, draw) for draw in draws])
            assert found[split, "ece_if_calibrated"] == pytest.approx(floor, rel=0.15)


@pytest.mark.parametrize("which", ["", "_noisy"])
def test_the_temperature_is_the_best_on_validation_and_scales_all_parts(training, kept, which):
    noisy = parts_of(training.config).validation.labels.numpy()
    for entry in kept.values():
        found = rows_of(training, entry)
        logits, labels = entry.predictions["val"]
        assert (noisy != labels).mean() > 0.2
        labels = noisy if which else labels

        def loss_at(log: float, logits: np.ndarray = logits, labels: np.ndarray = labels) -> float:
            scaled = log_softmax(logits.astype(np.float64) / np.exp(log), axis=1)
            return -scaled[np.arange(len(labels)), labels].mean()

        best = minimize_scalar(loss_at, bounds=(-7, 7), method="bounded", options={"xatol": 1e-9})
        temperature = found["val", f"temperature{which}"]
        if best.x > 6.9:  # worse than guessing: no temperature is high enough
            assert temperature > 500
            continue
        assert np.log(temperature) == pytest.approx(best.x, abs=1e-4)
        for split in ("train", "val", "test"):
            logits, labels = entry.predictions[split]
            scaled = softmax(logits.astype(np.float64) / temperature, axis=1)
            right = logits.argmax(axis=1) == labels
            assert found[split, f"loss_ts{which}"] == pytest.approx(log_loss(labels, scaled, labels=range(10)))
            assert found[split, f"ece_ts{which}"] == pytest.approx(expected_calibration_error(scaled, right))


def test_rows_have_the_fields_of_the_run_and_of_the_kept_weights(training, kept):
    for entry in kept.values():
        for row in rows_of_kept(RUN, training.config, entry, parts_of(training.config)):
            own = {key: getattr(row, key) for key in ("weights", "epoch", "batchnorm", "selected_by")}
            assert Keep(**own) == entry.keep
            common = (row.run, row.dataset, row.network, row.trained_on, row.seed, row.other)
            assert common == (RUN, "digits", "resnet8", "80%", 0, None)


def test_nan_logits_give_rows_without_values(training, kept):
    entry = kept["live-last"]
    spoilt = {split: (np.full_like(logits, np.nan), labels) for split, (logits, labels) in entry.predictions.items()}
    found = rows_of(training, entry._replace(predictions=spoilt))
    metrics = {(split, metric) for split in ("train", "val", "test") for metric in ("accuracy", "loss")}
    assert found == dict.fromkeys({*metrics, ("val", "noisy_accuracy"), ("val", "noisy_loss")})


# Rows of the history, and of transfer


def test_rows_of_the_history_have_no_criterion_and_none_for_nan():
    measured = [
        EpochMetric(1, "live", "own", "val", "accuracy", 0.5),
        EpochMetric(2, "ema-5%", "recomputed", "train", "loss", float("nan")),
    ]
    first, second = rows_of_history(RUN, config(seed=3), measured)
    assert (first.weights, first.batchnorm, first.epoch, first.split, first.metric) == tuple(
        getattr(measured[0], name) for name in ("weights", "batchnorm", "epoch", "split", "metric")
    )
    assert (first.value, first.selected_by, first.seed, first.other) == (0.5, None, 3, None)
    assert (second.weights, second.batchnorm, second.split, second.value) == ("ema-5%", "recomputed", "train", None)


@pytest.mark.parametrize("selected_by", ["accuracy", "loss", "last", "noisy-accuracy", "noisy-loss"])
def test_transfer_skips_swa_and_weights_chosen_on_noisy_labels(selected_by):
    keep = Keep(weights="ema-60%", epoch=1, batchnorm="averaged", selected_by=selected_by)
    refit, swa = config(trained_on="100%"), config(trained_on="100%", constant_from=1, swa=True)
    assert is_transferred(keep, refit) != selected_by.startswith("noisy")
    assert not is_transferred(keep, swa)
