"""The callback for Lightning with real Trainers: averages as computed by hand, and training unchanged."""

import gc
import importlib.util
import sys
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset

from emabank import recalibrate_batchnorm
from emabank.integrations.lightning import EMABankCallback
from tests.support.models import accuracy_and_loss, copies, data, network
from tests.support.oracle import assert_equal, ema
from tests.support.trainers import AVERAGES

L = pytest.importorskip("lightning.pytorch", reason="the extra lightning is not installed")
torchmetrics = pytest.importorskip("torchmetrics", reason="the extra lightning is not installed")


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory.*exists and is not empty"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:.*`isinstance.treespec, LeafSpec.`"),
]

VALIDATION = data(20, seed=2)


class Module(L.LightningModule):
    """Logs its validation in two ways: a value per batch, and a metric with a state."""

    def __init__(self, *, norm: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = network(norm=norm, dropout=dropout)
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(3, average="micro")
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.calls += 1
        logits = self(batch[0])
        self.log("val_loss", cross_entropy(logits, batch[1]), on_step=True, on_epoch=True)
        self.accuracy(logits, batch[1])
        self.log("val_accuracy", self.accuracy, logger=False)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)


class Recorder(L.Callback):
    """Records the weights, the random state and the number of worker processes after each training batch."""

    def __init__(self) -> None:
        self.weights: list[dict[str, Tensor]] = []
        self.random: list[Tensor] = []
        self.training: list[bool] = []
        self.workers: list[int] = []

    def on_train_batch_end(self, trainer: Any, pl_module: nn.Module, *_: Any) -> None:
        self.weights.append(copies(pl_module.layers))
        self.random.append(torch.get_rng_state())
        self.training.append(all(module.training for module in pl_module.layers.modules()))
        self.workers.append(len(active_children()))


class RecordingLogger(Logger):
    name = version = "recording"

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log_hyperparams(self, *_: Any, **__: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step or 0, metrics))


def training_loader(**keywords: Any) -> DataLoader[Any]:
    return DataLoader(data(48, seed=1), batch_size=8, shuffle=True, **keywords)


QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def fit(
    module: Any,
    *callbacks: Any,
    epochs: int = 2,
    loader: Any = None,
    validation: Any = None,
    ckpt_path: Any = None,
    **keywords: Any,
) -> Any:
    trainer = L.Trainer(
        **{
            "max_epochs": epochs,
            "accelerator": "cpu",
            "callbacks": list(callbacks),
            **QUIET,
            "enable_checkpointing": any(isinstance(callback, ModelCheckpoint) for callback in callbacks),
            **keywords,
        }
    )
    torch.manual_seed(11)
    loader = training_loader() if loader is None else loader
    validation = DataLoader(VALIDATION, batch_size=8) if validation is None else validation
    trainer.fit(module, loader, validation, ckpt_path=ckpt_path)
    return trainer


def bank_callback(**keywords: Any) -> EMABankCallback:
    return EMABankCallback(AVERAGES, **{"every": 1, "criteria": {"val_loss": "min", "val_accuracy": "max"}, **keywords})


# Averages and training -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
def test_averages_and_metrics_equal_those_computed_by_hand(accumulate: int):
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
        average = callback.bank.module(name)
        recalibrate_batchnorm(average, [data(48, seed=1).tensors[0]])
        accuracy, loss = accuracy_and_loss(average, VALIDATION.tensors)
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


def test_training_and_its_logs_are_not_changed_by_the_callback():
    runs = []
    for callbacks in ([], [bank_callback()]):
        recorder, logger = Recorder(), RecordingLogger()
        keywords = {"val_check_interval": 0.5, "logger": logger, "log_every_n_steps": 1}
        fit(Module(dropout=0.5), *callbacks, recorder, **keywords)
        runs.append((recorder, logger.rows))
    (plain, plain_rows), (averaged, rows) = runs
    assert_equal(averaged.weights, plain.weights)
    assert_equal(averaged.random, plain.random)
    assert all(averaged.training)
    live = [(step, {key: value for key, value in metrics.items() if "/" not in key}) for step, metrics in rows]
    assert live == plain_rows
    added = {key for _, metrics in rows for key in metrics if "/" in key}
    assert added == {f"{metric}/{name}" for metric in ("val_loss", "val_accuracy") for name in AVERAGES}


def test_recalibrating_on_the_training_loader_leaves_its_generator_as_it_was():
    runs = []
    for averaged in (False, True):
        torch.manual_seed(3)
        loader, recorder = training_loader(generator=torch.Generator().manual_seed(5)), Recorder()
        callbacks = [bank_callback(recalibrate=2, recalibrate_on=loader)] if averaged else []
        fit(Module(), *callbacks, recorder, loader=loader)
        runs.append(recorder.weights)
    assert_equal(runs[1], runs[0])


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
    """Records the trainer's progress bar in each validation step."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.bars = [*getattr(self, "bars", []), self.trainer.progress_bar_callback]
        super().validation_step(batch, batch_idx)


def test_the_progress_bar_stays_and_shows_the_live_weights_only():
    hooks = []
    for callbacks in ([], [bank_callback()]):
        module, bar = Watched(), Bar()
        fit(module, bar, *callbacks, enable_progress_bar=True, num_sanity_val_steps=0)
        assert {id(found) for found in module.bars} == {id(bar)}
        assert len(module.bars) == 6 * (1 + len(AVERAGES) * len(callbacks))
        hooks.append(bar.hooks)
    assert hooks[0] == hooks[1] == ["start", "batch", "batch", "batch"] * 2


def test_averages_start_no_extra_persistent_workers():
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
    (plain, live), (averaged, metrics) = runs
    assert_equal(averaged.weights, plain.weights)
    assert averaged.workers == plain.workers
    assert {key: metrics[key] for key in live} == live
    assert metrics["val_loss/slow"] != metrics["val_loss"]


def test_several_optimizers_count_as_one_step_per_batch():
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


def test_frozen_batch_norm_is_not_recomputed():
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


def test_batch_norm_is_recomputed_on_batches_as_training_gets_them():
    class Shifted(L.LightningDataModule):
        train_dataloader = staticmethod(training_loader)

        def val_dataloader(self) -> Any:
            return DataLoader(VALIDATION, batch_size=8)

        def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return [batch[0] + 5, batch[1]]

    module, callback = Module(), bank_callback(recalibrate=True)
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", precision="64-true", callbacks=[callback], **QUIET)
    trainer.fit(module, datamodule=Shifted())
    mean = callback.bank.weights("slow", batchnorm="recomputed")["layers.1.running_mean"]
    seen = callback.bank.module("slow").layers[0](data(48, seed=1).tensors[0].double() + 5)
    torch.testing.assert_close(mean, seen.mean(0), check_dtype=False)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([tuple(tensor[:8] for tensor in data(8, seed=1).tensors)])


class Paired(Module):
    """Takes batches of several loaders."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        parts = batch if isinstance(batch[0], list) else [batch]
        return sum(super(Paired, self).training_step(part, batch_idx) for part in parts)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (DataLoader(Stream(), batch_size=None), "a stream.*recalibrate_on="),
        ([training_loader(), training_loader()], "one loader.*got 2.*recalibrate_on="),
    ],
)
def test_a_loader_without_a_second_pass_is_refused_when_training_starts(loader: Any, message: str):
    with pytest.raises(ValueError, match=message):
        fit(Paired(), bank_callback(), loader=loader)
    fit(Paired(norm=False), bank_callback(), loader=loader, epochs=1)
    callback = bank_callback(recalibrate_on=training_loader())
    fit(Paired(), callback, loader=loader, epochs=1)
    assert len(callback.tracker.history) == 6


def test_batch_norm_of_a_module_without_forward_needs_the_option_forward():
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


def test_the_five_default_averages_depend_on_the_length_of_the_run():
    callback = EMABankCallback(criteria={"val_loss": "min"})
    fit(Module(), callback, accumulate_grad_batches=2)
    steps = callback.bank.num_steps
    halves = [0.5 ** (100 / percent / steps) for percent in (0.44, 0.88, 1.8, 3.5, 7.1)]
    assert [callback.bank.decay(name) for name in callback.bank.names] == pytest.approx(halves)
    assert f"{steps} of {steps} steps" in repr(callback.bank)
    with pytest.raises(ValueError, match="steps="):
        fit(Module(), EMABankCallback(), max_epochs=-1, max_time="00:00:00:01")
    callback = EMABankCallback(steps=1000)
    fit(Module(), callback)
    assert "12 of 1,000 steps" in repr(callback.bank)


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


def test_a_checkpoint_monitored_by_the_metric_of_an_average_contains_it(tmp_path: Path):
    by_average = ModelCheckpoint(tmp_path / "slow", monitor="val_loss/slow", save_last=True)
    by_live = ModelCheckpoint(tmp_path / "live", monitor="val_loss")
    callback, recorder = bank_callback(snapshots="each"), Recorder()
    trainer = fit(Module(), callback, by_average, by_live, recorder, epochs=6)
    for checkpoint, average in ((by_average, "slow"), (by_live, "live")):
        best = callback.tracker.best("val_loss", average)
        assert checkpoint.best_model_score.item() == best.value
        trainer.validate(Module(), DataLoader(VALIDATION, batch_size=8), checkpoint.best_model_path, verbose=False)
        assert trainer.callback_metrics["val_loss"].item() == pytest.approx(best.value, rel=1e-5)
        loaded = Module.load_from_checkpoint(checkpoint.best_model_path)
        assert_equal(copies(loaded), callback.tracker.weights("val_loss", average))
    last = torch.load(by_average.last_model_path, weights_only=True)  # for resuming: the live weights
    assert_equal(last["state_dict"]["layers.0.weight"], recorder.weights[last["global_step"] - 1]["0.weight"])


@pytest.mark.parametrize("finish_with", ["best", "slow"])
def test_finish_with_sets_the_final_weights(finish_with: str):
    module, callback = Module(), bank_callback(finish_with=finish_with)
    fit(module, callback, epochs=3)
    best = callback.tracker.best("val_loss")
    expected = callback.best_weights() if finish_with == "best" else callback.bank.weights("slow")
    assert_equal(copies(module), expected)
    if finish_with == "best":
        assert accuracy_and_loss(module, VALIDATION.tensors)[1] == pytest.approx(best.value, rel=1e-4)
    assert {row.epoch for row in callback.tracker.history} == {6, 12, 18}  # without the sanity check at 0


# Checkpoints ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("monitor", [None, "val_loss/slow"])  # the checkpoint contains the live weights, or an average
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, monitor: str | None):
    uninterrupted, resumed, recorder, after = bank_callback(), bank_callback(), Recorder(), Recorder()
    plain = DataLoader(data(48, seed=1), batch_size=8)
    saver = ModelCheckpoint(tmp_path, monitor=monitor, save_top_k=-1, filename="{epoch}")
    fit(Module(), uninterrupted, saver, recorder, epochs=4, loader=plain)
    saved = torch.load(tmp_path / "epoch=1.ckpt", weights_only=True)["state_dict"]["layers.0.weight"]
    assert torch.equal(saved, recorder.weights[11]["0.weight"]) == (monitor is None)
    fit(Module(), resumed, after, epochs=4, loader=plain, ckpt_path=tmp_path / "epoch=1.ckpt")
    assert_equal(recorder.weights[-1], after.weights[-1])
    assert resumed.bank.num_steps == uninterrupted.bank.num_steps == 24
    for name in AVERAGES:
        assert_equal(resumed.bank.weights(name), uninterrupted.bank.weights(name))
    assert resumed.tracker.history == uninterrupted.tracker.history
    assert_equal(resumed.best_weights(), uninterrupted.best_weights())


@pytest.mark.filterwarnings("ignore:.*steps")
def test_a_run_that_is_extended_keeps_the_half_lives_of_its_first_plan(tmp_path: Path):
    def callback() -> EMABankCallback:
        return EMABankCallback(criteria={"val_loss": "min"})  # half-lives are shares of the run

    first, longer = callback(), callback()
    loader = DataLoader(data(48, seed=1), batch_size=8)
    fit(Module(), first, ModelCheckpoint(tmp_path, filename="last"), epochs=2, loader=loader)
    fit(Module(), longer, epochs=3, loader=loader, ckpt_path=tmp_path / "last.ckpt")
    assert (first.bank.num_steps, longer.bank.num_steps) == (12, 18)
    assert [longer.bank.decay(name) for name in longer.bank.names] == [first.bank.decay(n) for n in first.bank.names]


def test_a_second_fit_resumes_and_another_trainer_or_module_starts_new_averages():
    module, callback = Module(norm=False), bank_callback()
    trainer = fit(module, callback, epochs=1)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, training_loader(), DataLoader(VALIDATION, batch_size=8))
    assert callback.bank.num_steps == 12
    for another in (module, Module(norm=False)):
        trainer = fit(another, callback, epochs=1, val_check_interval=0.5)
        assert callback.bank.num_steps == 6
        assert {row.epoch for row in callback.tracker.history} == {3, 6}
        assert callback.tracker.history[-1].value == trainer.callback_metrics["val_accuracy/slow"].item()


# Errors, and outside of training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_while_an_average_is_validated_restores_everything(error: type[BaseException]):
    class Failing(Module):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            super().validation_step(batch, batch_idx)
            if self.calls == 2 + 3 + 2:  # the sanity check, the first average, and in the second
                self.applied = copies(self.layers)
                raise error("now")

    module, recorder, callback = Failing(), Recorder(), bank_callback()
    logger = RecordingLogger()
    trainer = L.Trainer(
        **{**QUIET, "logger": logger},
        max_epochs=1,
        accelerator="cpu",
        callbacks=[callback, recorder],
        log_every_n_steps=1,
    )
    loop = trainer.fit_loop.epoch_loop.val_loop
    with pytest.raises((error, SystemExit)):
        trainer.fit(module, training_loader(), DataLoader(VALIDATION, batch_size=8))
    assert not torch.equal(module.applied["0.weight"], recorder.weights[-1]["0.weight"]), "no average was applied"
    assert_equal(copies(module.layers), recorder.weights[-1])
    assert callback in trainer.callbacks and recorder in trainer.callbacks
    assert trainer.fit_loop.epoch_loop.val_loop is loop
    assert trainer.loggers == [logger]
    callback.bank.state_dict()  # would raise if an average were applied


def test_a_fit_that_fails_before_it_resumes_leaves_nothing_for_the_next(tmp_path: Path):
    class Failing(Module):
        def on_validation_start(self) -> None:
            raise ZeroDivisionError

    fit(Module(), bank_callback(), ModelCheckpoint(tmp_path, filename="last"))
    callback = bank_callback()
    with pytest.raises(ZeroDivisionError):
        fit(Failing(), callback, epochs=3, ckpt_path=tmp_path / "last.ckpt")
    fit(Module(), callback, epochs=1)
    assert callback.bank.num_steps == 6
    assert {row.epoch for row in callback.tracker.history} == {6}


def test_the_callback_does_nothing_outside_of_fit():
    module, callback = Module(), bank_callback()
    trainer = fit(module, callback)
    before, calls, rows = copies(module), module.calls, len(callback.tracker.history)
    loader = DataLoader(VALIDATION, batch_size=8)
    trainer.validate(module, loader, verbose=False)
    trainer.predict(module, DataLoader(VALIDATION.tensors[0], batch_size=8))
    assert module.calls == calls + 3
    assert len(callback.tracker.history) == rows
    assert_equal(copies(module), before)
    fresh = bank_callback()
    L.Trainer(accelerator="cpu", callbacks=[fresh], logger=False, enable_progress_bar=False).validate(
        module, loader, verbose=False
    )
    with pytest.raises(RuntimeError, match="no bank yet"):
        _ = fresh.bank


# The package's older name --------------------------------------------------------------------------------------------


def test_the_callback_works_with_pytorch_lightning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    older = pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed")

    class Older(older.LightningModule):
        forward, training_step = Module.forward, Module.training_step
        configure_optimizers = Module.configure_optimizers

        def __init__(self) -> None:
            super().__init__()
            self.layers = network()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", self.training_step(batch, batch_idx))

    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    with pytest.raises(ImportError):
        importlib.import_module("lightning.pytorch")
    spec = importlib.util.spec_from_file_location("once_more", sys.modules[EMABankCallback.__module__].__file__)
    alone = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alone)
    monkeypatch.undo()
    assert issubclass(alone.EMABankCallback, older.Callback)
    for kind in (alone.EMABankCallback, EMABankCallback):  # only the older name is installed, and both
        torch.manual_seed(3)
        callback = kind(AVERAGES, every=1)
        saver = older.callbacks.ModelCheckpoint(tmp_path / kind.__module__, monitor="val_loss/slow")
        quiet = {**QUIET, "enable_checkpointing": True}
        trainer = older.Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback, saver], **quiet)
        trainer.fit(Older(), training_loader(), DataLoader(VALIDATION, batch_size=8))
        saved = torch.load(saver.best_model_path, weights_only=True)["state_dict"]
        assert_equal(saved, callback.bank.weights("slow"))
        assert trainer.callback_metrics["val_loss/slow"].item() == callback.tracker.best("val_loss", "slow").value
