"""EMABankCallback for Lightning: averages that are updated, validated, tracked and saved with a Trainer's run.

Lightning's own loop validates the averages before the live weights, so that whatever follows validation is as without
them. Needs the extra `lightning`.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from copy import copy
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from emabank.integrations._session import CallbackSession, check_reiterable, metric_names
from emabank.preserved import preserved_modes, preserved_rng
from emabank.rules import LIVE

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from lightning.pytorch.loggers.logger import DummyLogger
else:
    try:
        import lightning.pytorch as pl
        from lightning.pytorch.loggers.logger import DummyLogger
    except ImportError:
        try:  # the same under its older name
            import pytorch_lightning as pl
            from pytorch_lightning.loggers.logger import DummyLogger
        except ImportError:
            raise ImportError("emabank.integrations.lightning needs Lightning: pip install lightning.") from None


class EMABankCallback(CallbackSession, pl.Callback):
    """Keeps averages of a LightningModule's weights while it trains.

    At each validation during `fit` every average goes through the validation loop too. The callback logs what the
    module logs there as `<metric>/<average>`, such as `val_loss/ema-3.5%`, for loggers, `EarlyStopping` and
    `ModelCheckpoint`, which saves that average if it monitors its metric. The state is in Lightning's checkpoints. The
    tracker counts optimizer steps.

    >>> from lightning.pytorch import Trainer
    >>> callback = EMABankCallback([0.99, 0.999], criteria={"val_loss": "min"}, every=4)
    >>> trainer = Trainer(callbacks=[callback], logger=False, enable_checkpointing=False, accelerator="cpu")
    """

    _loss = "val_loss"
    _global_step = 0
    _metrics: Mapping[str, dict[str, Tensor]] = MappingProxyType({})  # of the averages, in this validation

    # Training --------------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Build the bank: Lightning has wrapped the model, put it on its device and loaded its checkpoint."""
        wrapped = trainer.strategy.model
        steps = trainer.estimated_stepping_batches
        # Another Trainer counts steps from 0 again: that is another run.
        self.start(pl_module if wrapped is None else wrapped, steps=steps, run=(trainer, pl_module))
        self._global_step = trainer.global_step
        self._replace_save_checkpoint(trainer)
        if not trainer.limit_val_batches or not _is_overridden(pl_module.validation_step):
            return
        if self.needs_training_loader:
            check_reiterable(_training_loader(trainer))
        if self.needs_batches and self._forward is None and not _is_overridden(pl_module.forward):
            raise ValueError(
                f"{type(pl_module).__name__} must define forward(), to recompute its batch-norm statistics. Or pass "
                "forward=lambda module, batch: ..., or recalibrate=False."
            )

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count one step, if any optimizer made one."""
        if trainer.global_step > self._global_step:
            self._global_step = trainer.global_step
            self.bank.update()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Copy the weights that `finish_with` names into the module."""
        self.finish(pl_module)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Drop a state that was loaded for `validate`, `test` or `predict`: the next fit must not resume from it."""
        self._pending_state = None
        vars(trainer).pop("save_checkpoint", None)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """The same after a fit that failed, for which Lightning calls no teardown."""
        self.teardown(trainer, pl_module, "fit")

    def _replace_save_checkpoint(self, trainer: Any) -> None:
        """Until teardown, what ModelCheckpoint saves as best by the metric of an average is a checkpoint of it."""
        save = trainer.save_checkpoint

        def save_checkpoint(filepath: Any, *args: Any, **kwargs: Any) -> None:
            savers = [saver for saver in trainer.checkpoint_callbacks if hasattr(saver, "best_k_models")]
            monitored = [saver.monitor for saver in savers if str(filepath) in saver.best_k_models]
            average = self.average_of(monitored[0]) if monitored else None
            with nullcontext() if average is None else self.holding(average):
                save(filepath, *args, **kwargs)

        trainer.save_checkpoint = save_checkpoint

    # Validation ------------------------------------------------------------------------------------------------------

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Validate every average, before the live weights."""
        self._metrics = {}
        if trainer.sanity_checking or trainer.state.fn != "fit" or self._bank is None:
            return
        with preserved_rng(*tree_leaves(trainer.val_dataloaders)), preserved_modes(pl_module):
            self._recalibrate_with(trainer)
            metrics = self.bank.evaluate(lambda _: _validate(trainer), averages=self.bank.names)
        self._metrics = {name: _mean_over_ranks(trainer, values) for name, values in metrics.items()}

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the metrics of the averages with those of the module."""
        if self._metrics:
            logged: Any = metric_names(self._metrics)
            # With several loaders, the names have the loader's index already.
            pl_module.log_dict(
                logged, on_step=False, on_epoch=True, sync_dist=True, add_dataloader_idx=False, batch_size=1
            )

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Pass the metrics to the tracker; checkpoints are saved after this."""
        if not self._metrics:
            return
        keys = {key for values in self._metrics.values() for key in values}
        # The module need not have averaged its own metrics over the ranks.
        live = {key: trainer.callback_metrics[key] for key in sorted(keys & trainer.callback_metrics.keys())}
        metrics = {LIVE: _mean_over_ranks(trainer, live), **self._metrics}
        self._metrics = {}
        numbers = {name: {key: float(value) for key, value in values.items()} for name, values in metrics.items()}
        is_trial: Any = trainer.fast_dev_run  # pyright: ignore[reportAttributeAccessIssue]
        self.observe(trainer.global_step, numbers, complete=not is_trial)

    def _recalibrate_with(self, trainer: pl.Trainer) -> None:
        _restore_training_modes(trainer)
        with trainer.strategy.precision_plugin.forward_context():
            loader = _training_loader(trainer) if self.needs_training_loader else None
            self.recalibrate(loader, lambda batch: _prepare_batch(trainer, batch))


def _is_overridden(method: Any) -> bool:
    """Whether a method is the user's, not that of Lightning (under either name) or torch."""
    return not getattr(method, "__module__", "").startswith(("lightning.", "pytorch_lightning.", "torch."))


def _training_loader(trainer: pl.Trainer) -> object:
    loaders = tree_leaves(trainer.train_dataloader)
    if len(loaders) != 1:
        raise ValueError(
            f"Training must use one loader to recompute batch-norm statistics on; got {len(loaders)}. Pass "
            "recalibrate_on=one loader, or recalibrate=False."
        )
    return loaders[0]


def _mean_over_ranks(trainer: pl.Trainer, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
    reduce = trainer.strategy.reduce
    return {key: reduce(value.detach().clone(), reduce_op="mean") for key, value in metrics.items()}  # pyright: ignore


# All use of Lightning's private attributes ---------------------------------------------------------------------------


def _restore_training_modes(trainer: Any) -> None:
    """Put the module into its training modes: layers that the user has frozen are in eval mode there."""
    trainer.fit_loop.epoch_loop.val_loop._module_mode.restore(trainer.lightning_module)


def _prepare_batch(trainer: Any, batch: Any) -> Any:
    """Do to a batch what the training loop does: its precision, the hooks of module or data module, the device."""
    module = trainer.lightning_module
    batch = module._on_before_batch_transfer(trainer.precision_plugin.convert_input(batch))
    return trainer.strategy.batch_to_device(batch, module.device)


def _validate(trainer: Any) -> dict[str, Tensor]:
    """The metrics of one more validation, by a loop of its own, without loggers and callbacks."""
    epoch_loop, connector = trainer.fit_loop.epoch_loop, trainer._logger_connector
    loop, callbacks, loggers = epoch_loop.val_loop, trainer.callbacks, trainer.loggers
    second = _second_loop(trainer, loop)
    # A thread may draw the progress bar at any moment, and looks for it among the callbacks.
    bars = [callback for callback in callbacks if callback is trainer.progress_bar_callback]
    try:
        epoch_loop.val_loop, trainer._logger_connector = second, type(connector)(trainer)
        trainer.callbacks, trainer.loggers = bars, [DummyLogger()] * len(loggers)  # for self.logger.experiment
        with _muted(bars):
            second.run()
        metrics = trainer.callback_metrics
    finally:
        epoch_loop.val_loop, trainer._logger_connector = loop, connector
        trainer.callbacks, trainer.loggers = callbacks, loggers
        second.teardown()  # ends its workers
    # A metric logged both per step and per epoch has two further names.
    parts = [key.partition("/dataloader_idx_") for key in metrics]
    further = {f"{metric}_{kind}{mark}{index}" for metric, mark, index in parts for kind in ("step", "epoch")}
    return {key: torch.as_tensor(value) for key, value in metrics.items() if key not in further}


def _second_loop(trainer: Any, loop: Any) -> Any:
    """Another loop over the data of one that is about to start."""
    state = trainer.state
    second = type(loop)(trainer, state.fn, state.stage, verbose=False, inference_mode=loop.inference_mode)
    second.setup_data = lambda: None
    second._max_batches = loop._max_batches
    second._combined_loader = copy(loop._combined_loader)
    second._combined_loader.flattened = [_with_own_workers(loader) for loader in loop._combined_loader.flattened]
    return second


def _with_own_workers(loader: Any) -> Any:
    """The same loader without the workers that it has started: they serve the loop that is about to start."""
    if not isinstance(loader, DataLoader):
        return loader
    second: Any = copy(loader)
    second._iterator = None
    return second


@contextmanager
def _muted(callbacks: list[Any]) -> Generator[None]:
    """Replace the hooks of these callbacks by one that does nothing."""
    hooks = [(vars(callback), name) for callback in callbacks for name in dir(pl.Callback) if name.startswith("on_")]
    try:
        for attributes, name in hooks:
            attributes[name] = _do_nothing
        yield
    finally:
        for attributes, name in hooks:
            attributes.pop(name, None)


def _do_nothing(*args: Any, **kwargs: Any) -> None: ...
