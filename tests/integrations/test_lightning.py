"""The Lightning callback with real Trainers: averages as computed by hand, and training undisturbed."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from integrations.by_hand import accuracy_and_loss, assert_equal, copies, data, ema
from integrations.lightning_runs import (
    AVERAGES,
    IGNORED,
    VALIDATION,
    L,
    Module,
    Recorder,
    RecordingLogger,
    bank_callback,
    fit,
    training_loader,
)
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, ProgressBar
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset

from emabank import recalibrate_batchnorm
from emabank.integrations.lightning import EMABankCallback

pytestmark = IGNORED


# What the averages are -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
def test_averages_and_their_metrics_are_those_computed_by_hand(accumulate: int):
    module, recorder, callback = Module(), Recorder(), bank_callback(recalibrate=True)
    first = copies(module.layers)
    trainer = fit(module, callback, recorder, accumulate_grad_batches=accumulate)
    sampled = recorder.weights[accumulate - 1 :: accumulate]
    assert callback.bank.num_steps == len(sampled) == 12 // accumulate
    for name, rule in AVERAGES.items():
        averaged_weights = callback.bank.weights(name, batchnorm="averaged")
        for key in ("0.weight", "1.weight", "1.running_var", "3.bias"):
            expected = ema(first[key], [weights[key] for weights in sampled], rule.decay)
            torch.testing.assert_close(averaged_weights[f"layers.{key}"].double(), expected, rtol=1e-5, atol=1e-6)
        averaged = callback.bank.module(name)
        recalibrate_batchnorm(averaged, [data(48, seed=1).tensors[0]])
        accuracy, loss = accuracy_and_loss(averaged, VALIDATION.tensors)
        logged = trainer.callback_metrics
        assert logged[f"val_loss/{name}"].item() == pytest.approx(loss, rel=1e-4)
        assert logged[f"val_accuracy/{name}"].item() == pytest.approx(accuracy)
        assert callback.tracker.history[-1].epoch == 12 // accumulate
    accuracy, loss = accuracy_and_loss(module, VALIDATION.tensors)
    assert logged["val_loss"].item() == pytest.approx(loss, rel=1e-5)
    assert logged["val_accuracy"].item() == pytest.approx(accuracy)


def test_several_validation_loaders_have_their_own_metrics():
    class Two(Module):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            super().validation_step(batch, batch_idx)

    second = data(16, seed=3)
    key = "val_loss/dataloader_idx_1"
    callback = bank_callback(recalibrate=False, criteria={key: "min"})
    trainer = fit(Two(), callback, validation=[DataLoader(VALIDATION, batch_size=8), DataLoader(second, batch_size=8)])
    _, loss = accuracy_and_loss(callback.bank.module("slow"), second.tensors)
    assert trainer.callback_metrics[f"{key}/slow"].item() == pytest.approx(loss, rel=1e-4)
    metrics = {metric.split("/")[0] for metric in trainer.callback_metrics if metric.endswith("/slow")}
    assert metrics == {"val_loss", "val_accuracy"}
    assert len(callback.tracker.history) == 2 * 3 * 2 * 2  # validations, weights, metrics, loaders


def test_training_and_what_is_logged_of_it_are_as_without_the_callback():
    runs = []
    for callbacks in ([], [bank_callback()]):
        recorder, logger = Recorder(), RecordingLogger()
        keywords = {"val_check_interval": 0.5, "logger": logger, "log_every_n_steps": 1}
        fit(Module(dropout=0.5), *callbacks, recorder, **keywords)
        runs.append((recorder, logger.rows))
    (plain, plain_rows), (beside, rows) = runs
    assert_equal(beside.weights, plain.weights)
    assert_equal(beside.random, plain.random)
    assert all(beside.training)
    live = [(step, {key: value for key, value in metrics.items() if "/" not in key}) for step, metrics in rows]
    assert live == plain_rows
    added = {key for _, metrics in rows for key in metrics if "/" in key}
    assert added == {f"{metric}/{name}" for metric in ("val_loss", "val_accuracy") for name in AVERAGES}


class Bar(ProgressBar):
    """A progress bar that records the hooks of validation."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks: list[str] = []

    def on_validation_start(self, *_: Any) -> None:
        self.hooks.append("start")

    def on_validation_batch_end(self, *_: Any) -> None:
        self.hooks.append("batch")

    def disable(self) -> None: ...


class Watched(Module):
    """Looks for the bar in each validation step, as a drawing thread may at any moment."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.bars = [*getattr(self, "bars", []), self.trainer.progress_bar_callback]
        super().validation_step(batch, batch_idx)


def test_a_progress_bar_stays_where_it_is_and_shows_the_live_weights_only():
    hooks = []
    for callbacks in ([], [bank_callback()]):
        module, bar = Watched(), Bar()
        fit(module, bar, *callbacks, enable_progress_bar=True, num_sanity_val_steps=0)
        assert {id(shown) for shown in module.bars} == {id(bar)}
        assert len(module.bars) == 6 * (1 + len(AVERAGES) * len(callbacks))
        hooks.append(bar.hooks)
    assert hooks[0] == hooks[1] == ["start", "batch", "batch", "batch"] * 2


def test_persistent_workers_serve_training_and_averages_and_none_are_left_behind():
    runs = []
    for callbacks in ([], [bank_callback()]):
        recorder = Recorder()
        workers: Any = {"num_workers": 1, "persistent_workers": True}
        loaders = {
            "loader": training_loader(**workers),
            "validation": DataLoader(VALIDATION, batch_size=8, **workers),
        }
        trainer = fit(Module(), *callbacks, recorder, **loaders, val_check_interval=0.5, epochs=1)
        runs.append((recorder, trainer.callback_metrics))
        del loaders, trainer
        gc.collect()  # ends the workers
    (plain, live), (beside, metrics) = runs
    assert_equal(beside.weights, plain.weights)
    assert beside.workers == plain.workers
    assert {key: metrics[key] for key in live} == live
    assert metrics["val_loss/slow"] != metrics["val_loss"]


def test_several_optimizers_make_one_step_per_batch():
    class Two(Module):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            loss = cross_entropy(self(batch[0]), batch[1])
            self.manual_backward(loss)
            if batch_idx % 2:
                for optimizer in self.optimizers():
                    optimizer.step()
                    optimizer.zero_grad()

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.layers[index].parameters(), lr=0.1) for index in (0, 3)]

    callback = bank_callback()
    trainer = fit(Two(), callback, epochs=1)
    assert trainer.global_step == 6
    assert callback.bank.num_steps == 3


# Batch norm, criteria and options ------------------------------------------------------------------------------------


def test_frozen_batch_norm_is_left_alone():
    class Frozen(Module):
        def on_train_epoch_start(self) -> None:
            self.layers[1].eval()

    callback = bank_callback(recalibrate=True)
    module = Frozen()
    fit(module, callback)
    assert torch.equal(module.layers[1].running_mean, torch.zeros(6))
    weights = callback.bank.weights("slow", batchnorm="recomputed")
    torch.testing.assert_close(weights["layers.1.running_mean"], torch.zeros(6))
    assert not module.layers[1].training and module.layers[0].training


def test_a_stream_is_refused_when_training_starts():
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([tuple(tensor[:8] for tensor in data(8, seed=1).tensors)])

    stream = DataLoader(Stream(), batch_size=None)
    with pytest.raises(ValueError, match="a stream.*recalibrate_on="):
        fit(Module(), bank_callback(), loader=stream)
    fit(Module(norm=False), bank_callback(), loader=stream)
    fit(Module(), bank_callback(recalibrate_on=training_loader()), loader=stream)


def test_several_training_loaders_need_another_one_for_batch_norm():
    class Paired(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return sum(super(Paired, self).training_step(part, batch_idx) for part in batch)

    loaders = [training_loader(), training_loader()]
    with pytest.raises(ValueError, match="one loader.*got 2.*recalibrate_on="):
        fit(Paired(), bank_callback(), loader=loaders)
    callback = bank_callback(recalibrate_on=training_loader())
    fit(Paired(), callback, loader=loaders, epochs=1)
    assert len(callback.tracker.history) == 6


def test_a_module_without_forward_needs_one_for_its_batch_norm():
    class Silent(Module):
        forward = L.LightningModule.forward

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return cross_entropy(self.layers(batch[0]), batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", self.training_step(batch, batch_idx))

    criteria: Any = {"val_loss": "min"}
    with pytest.raises(ValueError, match=r"Silent must define forward\(\)"):
        fit(Silent(), bank_callback(criteria=criteria))
    callback = bank_callback(criteria=criteria, forward=lambda module, batch: module.layers(batch[0]))
    fit(Silent(), callback)
    assert callback.tracker.best("val_loss").average in ("live", *AVERAGES)


def test_a_criterion_that_is_not_logged_is_refused():
    with pytest.raises(ValueError, match="criteria must .*'val_f1'.*'val_accuracy', 'val_loss'"):
        fit(Module(), bank_callback(criteria={"val_f1": "max"}))


def test_a_misspelt_option_is_refused_at_once():
    with pytest.raises(TypeError, match="evry"):
        EMABankCallback([0.9], evry=2)


# Other callbacks, and the best weights -------------------------------------------------------------------------------


def test_other_callbacks_can_use_the_metrics_of_an_average(tmp_path: Path):
    class Watched(EarlyStopping):
        def __init__(self, **keywords: Any) -> None:
            super().__init__(**keywords)
            self.seen: list[float] = []

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            if not trainer.sanity_checking:
                self.seen.append(trainer.callback_metrics["val_loss/slow"].item())

    checkpoint = ModelCheckpoint(tmp_path, monitor="val_loss/slow", mode="min")
    early = EarlyStopping("val_accuracy/fast", mode="max", patience=1, check_on_train_epoch_end=False)
    watched, callback, recorder = Watched(monitor="val_loss/slow"), bank_callback(), Recorder()
    module = Module()
    trainer = fit(module, watched, early, checkpoint, callback, recorder, epochs=30)
    assert trainer.current_epoch < 30
    values = [row.value for row in callback.tracker.history if (row.average, row.metric) == ("slow", "val_loss")]
    assert watched.seen == values
    assert checkpoint.best_model_score.item() == min(values) == callback.tracker.best("val_loss", "slow").value
    assert_equal(copies(module.layers), recorder.weights[-1])


def test_the_best_is_tracked_and_can_be_shipped():
    module, callback = Module(), bank_callback(snapshots="each")
    fit(module, callback, epochs=4)
    best = callback.tracker.best("val_loss")
    shipped = Module()
    shipped.load_state_dict(callback.best_weights())
    assert accuracy_and_loss(shipped, VALIDATION.tensors)[1] == pytest.approx(best.value, rel=1e-4)
    assert {row.epoch for row in callback.tracker.history} == {6, 12, 18, 24}  # and not the sanity check's 0


@pytest.mark.parametrize("finish_with", ["best", "slow"])
def test_the_module_ends_with_the_weights_asked_for(finish_with: str):
    module, callback = Module(), bank_callback(finish_with=finish_with)
    fit(module, callback, epochs=3)
    expected = callback.best_weights() if finish_with == "best" else callback.bank.weights("slow")
    assert_equal(copies(module), expected)
