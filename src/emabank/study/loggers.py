"""Optional curves for TensorBoard and Weights & Biases. The run's own files are the record of truth.

Both packages are imported only when used.
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from emabank.study.config import Place, RunConfig
from emabank.study.serialize import to_dict
from emabank.study.train import Training

Observe = Callable[[Training], None]
Log = Callable[[int, dict[str, float]], None]


@contextmanager
def loggers(place: Place, folder: Path, config: RunConfig) -> Generator[Observe]:
    """Yield a function that logs a training after each epoch."""
    place.check_trackers()
    with ExitStack() as open_logs:
        logs: list[Log] = []
        if place.tensorboard:
            logs.append(open_logs.enter_context(_tensorboard(folder)))
        if place.wandb is not None:
            logs.append(open_logs.enter_context(_wandb(place.wandb, folder, config)))

        def observe(training: Training) -> None:
            scalars = scalars_of(training) if logs else {}
            for log in logs:
                log(training.epoch, scalars)

        yield observe


def scalars_of(training: Training) -> dict[str, float]:
    """The numbers of the last epoch by names such as `val/accuracy/ema-0.998` and `val/accuracy/live`."""
    last = training.history()[-1]
    scalars = {"train/rate": last["rate"], "train/loss": last["training_loss"]}
    for metric in (*training.measured, *training.test_curves):
        if metric.epoch == training.epoch:
            statistics = "-recomputed" if metric.batchnorm == "recomputed" else ""
            scalars[f"{metric.split}/{metric.metric}/{metric.weights}{statistics}"] = metric.value
    return scalars


@contextmanager
def _tensorboard(folder: Path) -> Generator[Log]:
    writers: list[Any] = []

    def log(epoch: int, scalars: dict[str, float]) -> None:
        if not writers:
            # Opened at the first epoch to log, which may be any in a run that resumes from a checkpoint. What a killed
            # run has logged for this epoch and later ones is purged, so that the curve does not jump back.
            made = import_module("torch.utils.tensorboard").SummaryWriter
            writers.append(made(str(folder / "tensorboard"), purge_step=epoch))
        for name, value in scalars.items():
            writers[0].add_scalar(name, value, epoch)
        writers[0].flush()

    try:
        yield log
    finally:
        for writer in writers:
            writer.close()


@contextmanager
def _wandb(project: str, folder: Path, config: RunConfig) -> Generator[Log]:
    wandb: Any = import_module("wandb")
    try:
        # With the run's own id, a run that resumes here also resumes there, and nothing is logged twice.
        run = wandb.init(project=project, id=folder.name, resume="allow", dir=str(folder), config=to_dict(config))
    except wandb.Error as error:
        raise ValueError(
            f"wandb could not be started ({str(error).strip().splitlines()[0]}); log in with `wandb login`, set "
            "WANDB_MODE=offline, or leave wandb out"
        ) from error
    try:
        yield lambda epoch, scalars: run.log(scalars, step=epoch)
    finally:
        run.finish()
