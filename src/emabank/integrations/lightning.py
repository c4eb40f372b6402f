"""EMABankCallback for Lightning: a bank that is updated, validated, tracked and saved with a Trainer's run.

Averages are validated by Lightning's own loop, before the live weights are, so that what follows is as without them.
Needs the extra `lightning`. Imports what the integrations share.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from copy import copy
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from emabank.integrations._session import (
    LIVE,
    Accompanied,
    Averages,
    CallbackSession,
    Criteria,
    Settings,
    metric_names,
    same_modes,
)
from emabank.randomness import same_randomness

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
            raise ImportError(
                "emabank.integrations.lightning needs Lightning: python -m pip install 'emabank[lightning]'."
            ) from None


class EMABankCallback(Accompanied, pl.Callback):
    """Averages of a LightningModule's weights, beside its training.

    `averages`, `every` and `options` are those of `EMABank`. At each validation every average goes through the
    validation loop as well, and what the module logs there is logged again under `<metric>/<average>`, such as
    `val_loss/ema-0.998`: for loggers, `EarlyStopping` and `ModelCheckpoint`. `criteria` says which metrics make an
    average the best (the tracker counts optimizer steps here); None tracks nothing. `recalibrate` says on how
    many training batches the batch-norm statistics of averages are measured before they are validated: True is all,
    False leaves them the averaged ones. A batch goes through the module as `module(batch[0])`, unless `forward(module,
    batch)` does it; `recalibrate_on` is another loader for it. The state is in Lightning's checkpoints.

    The module keeps its live weights, unless `finish_with` names an average, or "best" by the first criterion, to be
    copied into it when training has ended (not when it was interrupted).

    >>> from lightning.pytorch import Trainer
    >>> callback = EMABankCallback([0.998], criteria={"val_loss": "min"})
    >>> trainer = Trainer(callbacks=[callback], logger=False, enable_checkpointing=False, accelerator="cpu")
    """

    def __init__(
        self,
        averages: Averages,
        *,
        every: int = 16,
        criteria: Criteria | None = MappingProxyType({"val_loss": "min"}),
        recalibrate: bool | int = 16,
        recalibrate_on: Iterable[Any] | None = None,
        forward: Callable[[nn.Module, Any], Any] | None = None,
        snapshots: Literal["best", "each"] | None = "best",
        finish_with: str | float | None = None,
        **options: Any,
    ) -> None:
        criteria = None if criteria is None else dict(criteria)
        self._session = CallbackSession(
            Settings(
                averages, every, criteria, recalibrate, recalibrate_on, forward, snapshots, finish_with, options, "step"
            )
        )
        self._steps = 0
        self._validated: dict[str, list[str]] = {}
        self._pending: dict[str, dict[str, Tensor]] = {}

    # Training --------------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Build the bank: the model is wrapped and on its device now, and a checkpoint is loaded."""
        wrapped = trainer.strategy.model
        self._session.start(pl_module if wrapped is None else wrapped, resume_for=pl_module)
        self._steps = trainer.global_step
        self._pending, self._validated = {}, {}
        if trainer.limit_val_batches and _is_the_users(pl_module.validation_step) and self._session.needs_batches:
            self._session.check(_training_loader(trainer))
            if not self._session.has_forward and not _is_the_users(pl_module.forward):
                raise ValueError(
                    f"{type(pl_module).__name__} has batch norm and no forward(), so its statistics cannot be "
                    "measured: give EMABankCallback(..., forward=lambda module, batch: ...), or recalibrate=False."
                )

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a step, if an optimizer (or several) made one."""
        if trainer.global_step > self._steps:
            self._steps = trainer.global_step
            self.bank.update()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave in the module what `finish_with` asks for."""
        self._session.finish(pl_module)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """A state that was loaded for `validate`, `test` or `predict` is not the next run's."""
        self._session.forget_loaded()

    # Validation ------------------------------------------------------------------------------------------------------

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Validate every average, before the live weights."""
        self._pending, self._validated = {}, {}
        if trainer.sanity_checking or trainer.state.fn != "fit" or not self._session.has_started:
            return
        loaders = _flattened(_validation_loop(trainer)._combined_loader)
        with same_randomness(*loaders), same_modes(pl_module):
            self._recalibrate(trainer, pl_module)
            for name in self.bank.names:
                with self.bank.applied(name, batchnorm=self._session.statistics), _aside(trainer) as metrics:
                    _validation_loop(trainer).run()
                self._pending[name] = _of_epoch(metrics)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log what was found, with what the module logs."""
        for name, metrics in self._pending.items():
            self._validated[name] = list(metrics)
            logged = metric_names({name: metrics})  # pyright: ignore[reportArgumentType]
            pl_module.log_dict(logged, on_step=False, on_epoch=True, sync_dist=True, batch_size=1)
        self._pending = {}

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Tell the tracker; checkpoints are saved after this."""
        if not self._validated:
            return
        known = trainer.callback_metrics
        found = {
            name: {key: float(known[logged]) for key in keys for logged in metric_names({name: {key: 0.0}})}
            for name, keys in self._validated.items()
        }
        # The module need not have averaged its own metrics over the processes.
        live = {
            key: float(trainer.strategy.reduce(known[key].detach().clone(), reduce_op="mean"))
            for key in sorted({key for keys in self._validated.values() for key in keys} & known.keys())
        }
        self._validated = {}
        self._session.observe(trainer.global_step, {LIVE: live, **found}, complete=not _is_a_trial(trainer))

    def _recalibrate(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self._session.needs_batches:
            self._session.recalibrate(())  # there is nothing to measure; the bank shall know that it was asked
            return
        # Layers that the user has frozen are in eval mode during training; now all of them are.
        _validation_loop(trainer)._module_mode.restore(pl_module)
        strategy = trainer.strategy

        def prepare(batch: Any) -> Any:
            return strategy.batch_to_device(pl_module.on_before_batch_transfer(batch, 0), pl_module.device)

        with strategy.precision_plugin.forward_context():
            self._session.recalibrate(_training_loader(trainer), prepare)
        pl_module.eval()

    # State -----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The averages and the tracker, for Lightning's checkpoint."""
        return self._session.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint when training begins."""
        self._session.load_state_dict(state_dict, now=False)


def _is_the_users(method: Any) -> bool:
    """Whether a module has a method of its own, and not Lightning's (under either name of it) or torch's."""
    return not getattr(method, "__module__", "").startswith(("lightning.", "pytorch_lightning.", "torch."))


# Lightning's inner parts, all in one place: its validation loop, where the loaders are, what has been logged ---------


def _validation_loop(trainer: pl.Trainer) -> Any:
    return trainer.fit_loop.epoch_loop.val_loop


def _is_a_trial(trainer: Any) -> bool:
    return bool(trainer.fast_dev_run)


def _flattened(combined: Any) -> list[Any]:
    return [] if combined is None else list(combined.flattened)


def _training_loader(trainer: pl.Trainer) -> object:
    loaders = _flattened(trainer.fit_loop._combined_loader)  # pyright: ignore[reportPrivateUsage]
    if len(loaders) > 1:
        raise ValueError(
            f"Training has {len(loaders)} loaders, and batch-norm statistics are measured on one: give "
            "EMABankCallback(..., recalibrate_on=loader), or recalibrate=False."
        )
    return loaders[0] if loaders else None


_LOGGED = ("_progress_bar_metrics", "_logged_metrics", "_callback_metrics")


@contextmanager
def _aside(trainer: Any) -> Generator[Mapping[str, Tensor]]:
    """Lightning with a validation loop of our own, callbacks that hear nothing, and loggers that log nothing; then as
    it was.

    Yields where the metrics are that the module logs meanwhile.
    """
    epoch_loop, connector = trainer.fit_loop.epoch_loop, trainer._logger_connector
    loop, callbacks, loggers = epoch_loop.val_loop, trainer.callbacks, trainer.loggers
    logged = {key: getattr(connector, key) for key in (*_LOGGED, "_first_loop_iter", "_current_fx")}
    # A bar may have a thread that draws it at any moment, and that looks for it among the trainer's callbacks.
    bars = [callback for callback in callbacks if callback is trainer.progress_bar_callback]
    try:
        epoch_loop.val_loop = _second(loop, trainer)
        trainer.callbacks = bars
        for bar in bars:
            vars(bar).update(dict.fromkeys(_hooks(bar), _unheard))
        trainer.loggers = [DummyLogger()] * len(loggers)  # a module may use self.logger.experiment
        for key in _LOGGED:
            setattr(connector, key, {})
        yield connector._callback_metrics
    finally:
        epoch_loop.val_loop, trainer.callbacks, trainer.loggers = loop, callbacks, loggers
        for bar in bars:
            for hook in _hooks(bar):
                vars(bar).pop(hook, None)
        for key, value in logged.items():
            setattr(connector, key, value)


def _hooks(callback: pl.Callback) -> list[str]:
    return [name for name in dir(type(callback)) if name.startswith("on_") or name in ("setup", "teardown")]


def _unheard(*given: Any, **named: Any) -> None: ...


def _second(loop: Any, trainer: pl.Trainer) -> Any:
    """Another loop over the same data as one that is about to go through it."""
    second = type(loop)(trainer, loop._trainer_fn, loop._stage, verbose=False, inference_mode=loop.inference_mode)
    combined = copy(loop._combined_loader)
    combined._iterator = None
    combined.flattened = [_twin(loader) for loader in combined.flattened]
    second._combined_loader = combined
    second._max_batches = loop._max_batches
    second._last_val_dl_reload_epoch = loop._last_val_dl_reload_epoch
    return second


def _twin(loader: Any) -> Any:
    """A loader whose persistent workers are its own: those of the first serve the loop that is about to run."""
    if not (isinstance(loader, DataLoader) and loader.persistent_workers):
        return loader
    twin: Any = copy(loader)
    twin._iterator = None
    return twin


def _of_epoch(metrics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One value for each metric: one that is logged for steps as well stands here under further names."""
    further = {f"{key}_{kind}" for key in metrics for kind in ("step", "epoch")}
    return {key: torch.as_tensor(value) for key, value in metrics.items() if key not in further}
