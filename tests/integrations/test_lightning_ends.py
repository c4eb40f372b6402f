"""The Lightning callback and how a run ends: checkpoints, errors during validation, and its older package name."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from integrations.by_hand import assert_equal, copies, data, network
from integrations.lightning_runs import (
    AVERAGES,
    IGNORED,
    QUIET,
    VALIDATION,
    L,
    Module,
    Recorder,
    RecordingLogger,
    bank_callback,
    fit,
    training_loader,
)
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from emabank.integrations.lightning import EMABankCallback

pytestmark = IGNORED


# Checkpoints ---------------------------------------------------------------------------------------------------------


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path):
    uninterrupted, parts = bank_callback(), bank_callback()
    recorder, after = Recorder(), Recorder()
    fit(Module(), uninterrupted, recorder, epochs=4, loader=DataLoader(data(48, seed=1), batch_size=8))
    plain = DataLoader(data(48, seed=1), batch_size=8)
    fit(Module(), parts, ModelCheckpoint(tmp_path, save_last=True), epochs=2, loader=plain)
    resumed = bank_callback()
    fit(Module(), resumed, after, epochs=4, loader=plain, ckpt_path=tmp_path / "last.ckpt")
    assert_equal(recorder.weights[-1], after.weights[-1])
    assert resumed.bank.num_steps == uninterrupted.bank.num_steps == 24
    for name in AVERAGES:
        assert_equal(resumed.bank.weights(name), uninterrupted.bank.weights(name))
    assert resumed.tracker.history == uninterrupted.tracker.history
    assert_equal(resumed.best_weights(), uninterrupted.best_weights())


def test_a_checkpoint_holds_the_live_weights_and_loads_without_running_anything(tmp_path: Path):
    module, callback = Module(), bank_callback()
    fit(module, callback, ModelCheckpoint(tmp_path, save_last=True))
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert_equal(saved["state_dict"], copies(module))
    averages = saved["callbacks"]["EMABankCallback"]["bank"]["averages"]
    assert set(averages) == set(AVERAGES)


def test_a_second_fit_resumes_for_the_same_module_and_starts_anew_for_another():
    module, callback = Module(norm=False), bank_callback()
    trainer = fit(module, callback, epochs=1)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, training_loader(), DataLoader(VALIDATION, batch_size=8))
    assert callback.bank.num_steps == 12
    fit(Module(norm=False), callback, epochs=1)
    assert callback.bank.num_steps == 6


# Errors, and outside of training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_while_an_average_is_validated_leaves_everything_as_it_was(error: type[BaseException]):
    class Failing(Module):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            super().validation_step(batch, batch_idx)
            if self.calls == 2 + 3 + 2:  # the sanity check, the first average, and in the second
                self.held = copies(self.layers)
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
    assert not torch.equal(module.held["0.weight"], recorder.weights[-1]["0.weight"]), "no average was in the module"
    assert_equal(copies(module.layers), recorder.weights[-1])
    assert callback in trainer.callbacks and recorder in trainer.callbacks
    assert trainer.fit_loop.epoch_loop.val_loop is loop
    assert trainer.loggers == [logger]
    callback.bank.state_dict()  # would raise if an average were applied


def test_outside_of_fit_nothing_happens():
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


def test_pytorch_lightning_works_too(monkeypatch: pytest.MonkeyPatch):
    older = pytest.importorskip("pytorch_lightning", reason="this Lightning does not bring its older name along")

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
    for kind in (alone.EMABankCallback, EMABankCallback):  # with the older name alone, and with both
        torch.manual_seed(3)
        callback = kind(AVERAGES, every=1)
        trainer = older.Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback], **QUIET)
        trainer.fit(Older(), training_loader(), DataLoader(VALIDATION, batch_size=8))
        assert trainer.callback_metrics["val_loss/slow"].item() == callback.tracker.best("val_loss", "slow").value
