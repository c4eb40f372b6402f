"""EMABankCallback for the Hugging Face Trainer: a bank that is updated, evaluated, tracked and saved with its run.

Averages are evaluated by the Trainer's own evaluation loop after each evaluation of the live weights, and saved beside
each checkpoint. Needs the extra `transformers`. Imports what the integrations share.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from torch import nn

from emabank.checkpoint import read_state, write_state
from emabank.integrations._session import (
    LIVE,
    Accompanied,
    Averages,
    CallbackSession,
    Criteria,
    Metrics,
    Settings,
    metric_names,
    same_modes,
)
from emabank.randomness import same_randomness

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError:
    raise ImportError(
        "emabank.integrations.transformers needs transformers: python -m pip install 'emabank[transformers]'."
    ) from None

FILE = "emabank.pt"
_KIND = "averages of a Trainer"
_TIMES = ("_runtime", "_samples_per_second", "_steps_per_second", "_model_preparation_time")


class EMABankCallback(Accompanied, TrainerCallback):
    """Averages of the weights that a Trainer trains; `trainer.add_callback(EMABankCallback(trainer, ...))`.

    `averages`, `every` and `options` are those of `EMABank`. Whenever the Trainer evaluates during training, every
    average is evaluated as well; its metrics are logged under `<metric>/<average>`, such as `eval_loss/ema-0.998`, and
    `metric_for_best_model` or an `EarlyStoppingCallback` may name them. `criteria` says which metrics make an average
    the best (the tracker counts optimizer steps here); None tracks nothing. `recalibrate` says on how many
    training batches the batch-norm statistics of averages are measured before: True is all, False leaves them the
    averaged ones. A batch goes through the model as `model(**batch)`, unless `forward(model, batch)` does it;
    `recalibrate_on` is another loader for it.

    The state is a file beside each checkpoint, and `trainer.train(resume_from_checkpoint=...)` goes on from it.
    `resume_from` is the checkpoint's folder if that is not in `output_dir`; False begins afresh where there is none.

    The model keeps its live weights, unless `finish_with` names an average, or "best" by the first criterion, to be
    copied into it when training has ended (not when it was interrupted).
    """

    def __init__(
        self,
        trainer: Trainer,
        averages: Averages,
        *,
        every: int = 16,
        criteria: Criteria | None = MappingProxyType({"eval_loss": "min"}),
        recalibrate: bool | int = 16,
        recalibrate_on: Iterable[Any] | None = None,
        forward: Callable[[nn.Module, Any], Any] | None = None,
        snapshots: Literal["best", "each"] | None = "best",
        finish_with: str | float | None = None,
        resume_from: str | Path | Literal[False] | None = None,
        **options: Any,
    ) -> None:
        criteria = None if criteria is None else dict(criteria)
        self._session = CallbackSession(
            Settings(
                averages, every, criteria, recalibrate, recalibrate_on, forward, snapshots, finish_with, options, "step"
            )
        )
        self._trainer = trainer
        self._resume_from: str | Path | Literal[False] | None = resume_from
        self._is_training = False

    # Training --------------------------------------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Build the bank: the model is wrapped now, and a checkpoint is loaded."""
        handler = self._trainer.callback_handler
        # Before those that look for an average's metrics. A new list, for somebody is going through the old one.
        handler.callbacks = [self, *(each for each in handler.callbacks if each is not self)]
        self._session.start(self._trainer.model_wrapped or _model(self._trainer))
        if state.global_step > 0 and self._resume_from is not False:
            folder = _checkpoint(args, state) if self._resume_from is None else Path(self._resume_from)
            if not (folder / FILE).is_file():
                raise FileNotFoundError(
                    f"There is no {FILE} in {folder}, to go on from at step {state.global_step}: give "
                    "EMABankCallback(..., resume_from=the checkpoint's folder), or False to begin the averages afresh."
                )
            self._session.load_state_dict(read_state(folder / FILE, kind=_KIND), now=True)
        if args.eval_strategy != "no":
            self._session.check(kwargs.get("train_dataloader"))
        self._is_training = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Count an optimizer step, unless a loss scaler had it left out."""
        if not self._trainer.accelerator.optimizer_step_was_skipped:
            self.bank.update()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave in the model what `finish_with` asks for."""
        self._is_training = False
        self._session.finish(_model(self._trainer))

    # Evaluation ------------------------------------------------------------------------------------------------------

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Evaluate every average on the same data, and add what was found to the metrics.

        Not before the first step, where all are the same, and not outside of training.
        """
        if not self._is_training or state.global_step == 0 or not metrics:
            return
        loader, training = kwargs["eval_dataloader"], kwargs["train_dataloader"]
        prefix = next(key for key in metrics if key.endswith("_runtime")).removesuffix("_runtime")
        found: Metrics = {LIVE: _numbers(metrics)}
        model = _model(self._trainer)
        with same_randomness(loader), same_modes(model), _unheard(self._trainer):
            self._recalibrate(model, training)
            for name in self.bank.names:
                with self.bank.applied(name, batchnorm=self._session.statistics):
                    output = self._trainer.evaluation_loop(
                        loader,
                        description=f"Evaluation of {name}",
                        prediction_loss_only=True if self._trainer.compute_metrics is None else None,
                        metric_key_prefix=prefix,
                    )
                found[name] = _numbers(output.metrics or {})
        added = metric_names({name: values for name, values in found.items() if name != LIVE})
        self._trainer.log(dict(added))
        metrics.update(added)
        # Of several evaluation sets each comes by itself, and one of them has what the criteria name.
        is_one_of_several = isinstance(self._trainer.eval_dataset, Mapping)
        if not is_one_of_several or all(name in metrics for name in self._session.criteria):
            self._session.observe(state.global_step, found)

    def _recalibrate(self, model: nn.Module, loader: object) -> None:
        if not self._session.needs_batches:
            self._session.recalibrate(())  # there is nothing to measure; the bank shall know that it was asked
            return
        model.train()  # as the Trainer does before each step: a model that keeps layers frozen does so here
        with self._trainer.compute_loss_context_manager():
            self._session.recalibrate(loader)

    # State -----------------------------------------------------------------------------------------------------------

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write the averages and the tracker beside the checkpoint."""
        if args.should_save:
            write_state(_checkpoint(args, state) / FILE, self._session.state_dict(), kind=_KIND)


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"


def _model(trainer: Trainer) -> nn.Module:
    model = trainer.model
    if not isinstance(model, nn.Module):
        raise ValueError(f"The Trainer has no model to average, but {type(model).__name__}.")
    return model


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Those that say something of the weights, and not of the time it took."""
    return {
        key: float(value)
        for key, value in metrics.items()
        if isinstance(value, int | float) and not key.endswith(_TIMES) and key != "epoch"
    }


@contextmanager
def _unheard(trainer: Trainer) -> Generator[None]:
    """No callback hears of what the Trainer does: progress bars and the like are about the live weights."""
    handler = trainer.callback_handler
    callbacks = handler.callbacks
    handler.callbacks = []
    try:
        yield
    finally:
        handler.callbacks = callbacks
