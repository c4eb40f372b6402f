"""EMABankCallback for the Hugging Face Trainer: averages that are updated, evaluated, tracked and saved with its run.

The Trainer's own loop evaluates the averages after the live weights. Needs the extra `transformers`.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from torch import nn

from emabank.checkpoint import read_state, write_state
from emabank.integrations._session import Averages, CallbackSession, Metrics, check_reiterable, metric_names
from emabank.preserved import preserved_modes, preserved_rng
from emabank.rules import LIVE

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError:
    raise ImportError(
        "emabank.integrations.transformers needs transformers: pip install transformers accelerate."
    ) from None

FILE = "emabank.pt"
_KIND = "averages of a Trainer"
_TIMES = ("_runtime", "_samples_per_second", "_steps_per_second", "_model_preparation_time")


class EMABankCallback(CallbackSession, TrainerCallback):
    """Averages of the weights that a Trainer trains: `trainer.add_callback(EMABankCallback(trainer, ...))`.

    Whenever the Trainer evaluates during training, the callback evaluates every average too and logs its metrics as
    `<metric>/<average>`, such as `eval_loss/ema-3.5%`, for `EarlyStoppingCallback` and for `metric_for_best_model`,
    whose best checkpoint is then one of that average. The state is a file beside each checkpoint, and
    `trainer.train(resume_from_checkpoint=...)` resumes from it. The tracker counts optimizer steps.

    Args:
        trainer: The Trainer that the callback is added to.
        averages: The averages, as for `EMABank`. None keeps five, for as many steps as the trainer will take.
        resume_from: The folder of the checkpoint to resume from, if it is not in `output_dir`; False starts new
            averages.
        options: The arguments that all integrations share (criteria, recalibrate, recalibrate_on, forward, snapshots,
            finish_with), and those of `EMABank`, such as `every`.
    """

    _loss = "eval_loss"

    def __init__(
        self,
        trainer: Trainer,
        averages: Averages | None = None,
        *,
        resume_from: str | Path | Literal[False] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(averages, **options)
        self._trainer = trainer
        self._resume_from: str | Path | Literal[False] | None = resume_from
        self._is_training = False

    # Training --------------------------------------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Build the bank: the Trainer has wrapped the model and loaded its checkpoint."""
        if not self._trainer.is_in_train:
            raise RuntimeError("trainer must be the Trainer that trains; got another one. Build a callback for each.")
        handler, wrapped = self._trainer.callback_handler, self._trainer.model_wrapped
        # First, so that other callbacks see the metrics of averages. A new list: the handler is iterating over it.
        handler.callbacks = [self, *(callback for callback in handler.callbacks if callback is not self)]
        saved, begins_anew = self._saved_state(state), self._resume_from is False
        if saved is not None and not begins_anew:
            self.load_state_dict(saved)
        self.start(_model(self._trainer) if wrapped is None else wrapped, steps=state.max_steps)
        if saved is not None and begins_anew:
            self.resume(saved, only_live=True)
        if args.eval_strategy != "no" and self.needs_training_loader:
            check_reiterable(kwargs.get("train_dataloader"))
        if args.eval_strategy != "no":
            self._observed_prefix()
        self._is_training = True

    def _saved_state(self, state: TrainerState) -> dict[str, Any] | None:
        """The state beside the checkpoint that the Trainer resumes from, if it resumes."""
        path = Path(self._resume_from or self._checkpoint(state)) / FILE
        if state.global_step == 0 or (self._resume_from is False and not path.is_file()):
            return None
        if not path.is_file():
            raise FileNotFoundError(
                f"There is no {FILE} in {path.parent} to resume the averages from at step {state.global_step}. "
                "Pass resume_from=the folder of the checkpoint, or resume_from=False to start new averages."
            )
        return read_state(path, kind=_KIND)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Count an optimizer step, unless the loss scaler skipped it."""
        if not self._trainer.accelerator.optimizer_step_was_skipped:
            self.bank.update()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write the averages and the tracker beside the checkpoint; the best by the metric of an average is of it."""
        folder = self._checkpoint(state)
        is_best = state.best_model_checkpoint is not None and Path(state.best_model_checkpoint).name == folder.name
        average = self.average_of(args.metric_for_best_model) if is_best else None
        with nullcontext() if average is None else self.holding(average):
            content = self.state_dict()
            if args.should_save:
                write_state(folder / FILE, content, kind=_KIND)
            if average is not None:
                self._trainer.save_model(str(folder), _internal_call=True)

    def _checkpoint(self, state: TrainerState) -> Path:
        trainer: Any = self._trainer
        run = trainer._get_output_dir(trial=trainer._trial)  # each trial of a hyperparameter search has its own
        return Path(run) / f"checkpoint-{state.global_step}"

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Copy the weights that `finish_with` names into the model."""
        self._is_training = False
        self.finish(_model(self._trainer))

    # Evaluation ------------------------------------------------------------------------------------------------------

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Evaluate every average on the same data, and add its metrics to the Trainer's.

        Skipped before the first step, when all weights are equal, and outside training.
        """
        if not self._is_training or state.global_step == 0 or not metrics:
            return
        trainer, model, loader = self._trainer, _model(self._trainer), kwargs["eval_dataloader"]
        prefix = next(key for key in metrics if key.endswith("_runtime")).removesuffix("_runtime")

        def evaluate(_: nn.Module) -> dict[str, float]:
            output = trainer.evaluation_loop(
                loader,
                description="Evaluation of an average",
                prediction_loss_only=True if trainer.compute_metrics is None else None,
                metric_key_prefix=prefix,
            )
            return _numbers(output.metrics or {})

        with preserved_rng(loader), preserved_modes(model), _without_callbacks(trainer):
            model.train()  # as the Trainer does before each step; layers that the model keeps frozen stay so
            with trainer.compute_loss_context_manager():
                self.recalibrate(kwargs["train_dataloader"])
            averages = self.bank.evaluate(evaluate, averages=self.bank.names)
        logged = metric_names(averages)
        values: Metrics = {LIVE: _numbers(metrics), **averages}
        trainer.log(dict(logged))
        metrics.update(logged)
        if self._observed_prefix() in (None, prefix):
            self.observe(state.global_step, values)

    def _observed_prefix(self) -> str | None:
        """With several evaluation sets: how the metrics of the one that the criteria name begin."""
        sets = self._trainer.eval_dataset
        if not isinstance(sets, Mapping):
            return None
        prefixes = [f"eval_{name}" for name in sets]
        named = [prefix for prefix in prefixes if all(key.startswith(f"{prefix}_") for key in self._criteria)]
        if not named:
            raise ValueError(
                f"criteria must be metrics of one evaluation set, which begin with one of {', '.join(prefixes)}; got "
                f'{", ".join(self._criteria)}. Pass criteria={{"{prefixes[0]}_loss": "min"}} or the like.'
            )
        return max(named, key=len)


def _model(trainer: Trainer) -> nn.Module:
    model = trainer.model
    if not isinstance(model, nn.Module):
        raise ValueError(f"The Trainer's model must be a torch.nn.Module; got {type(model).__name__}.")
    return model


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that depend on the weights, without timings."""
    return {
        key: float(value)
        for key, value in metrics.items()
        if isinstance(value, int | float) and not key.endswith(_TIMES) and key != "epoch"
    }


@contextmanager
def _without_callbacks(trainer: Trainer) -> Generator[None]:
    """Call no callbacks meanwhile: progress bars and the like show the live weights."""
    handler = trainer.callback_handler
    callbacks = handler.callbacks
    handler.callbacks = []
    try:
        yield
    finally:
        handler.callbacks = callbacks
