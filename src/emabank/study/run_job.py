"""Train one run, from its configuration to its finished folder; as a program, this is the worker of an executor.

An interrupted run resumes, and a finished one is left as it is.
"""

import json
import signal
import sys
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from emabank.study.config import DataConfig, Place, RunConfig
from emabank.study.data.datasets import load_dataset, load_transfer_target
from emabank.study.data.images import Dataset, fingerprint
from emabank.study.data.splits import make_parts
from emabank.study.distributed import ALONE, ProcessGroup, join_group, peer_loss_as_error
from emabank.study.evaluate import is_transferred, predict_kept, rows_of_history, rows_of_kept, rows_of_transfer
from emabank.study.executors import Task
from emabank.study.executors.worker import LOCKED, keep_freed_memory, stop_with_executor
from emabank.study.loggers import loggers
from emabank.study.models import build_network
from emabank.study.posthoc import evaluate_grid
from emabank.study.predict import threads
from emabank.study.runs import storage
from emabank.study.runs.environment import now
from emabank.study.runs.locks import LockedError
from emabank.study.runs.reader import FORKS, POSTHOC, Progress
from emabank.study.runs.writer import RunFolder, RunWriter, open_run
from emabank.study.serialize import from_dict, to_dict
from emabank.study.train import Interrupted, Training

MakeModel = Callable[[], nn.Module]
WORKER = "emabank.study.run_job"
"""This module, for `python -m`."""


class Job(NamedTuple):
    """A run to train, and where it may start from."""

    config: RunConfig
    fork: Path | None = None
    """A checkpoint of another run that is the same up to that step; without it, the run starts from the beginning."""
    forks: tuple[int, ...] = ()
    """Epochs after which to keep a checkpoint from which other runs start."""


def run_job(
    job: Job,
    place: Place,
    dataset: Dataset | None = None,
    *,
    make_model: MakeModel | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
    group: ProcessGroup = ALONE,
) -> RunFolder:
    """Train, measure and write one run, unless it is done.

    Without `make_model`, the network is that of the configuration. The global random state and the number of threads
    are restored on return. All processes that train together call this, and the first one writes.
    """
    config = job.config
    folder = folder_of(config, place)
    if group.from_first(folder.is_done()):
        if group.is_first:
            storage.remove_checkpoints(folder.path)  # a kill may have come between the mark and this
        return folder
    dataset = dataset or load_dataset(config.recipe.data, place.data, cache=place.cache)
    _check_data(dataset, config.fingerprint)
    make_model = make_model or network_of(config, dataset)
    count = config.recipe.hardware.threads
    with threads(count), _random_state_kept(device_of(config)), ExitStack() as stack:
        run, observe = None, _observe_nothing
        if group.is_first:
            also = None if group.is_alone else {"processes": group.world}
            run = stack.enter_context(open_run(place.runs, to_dict(config), threads=count, also=also))
        if group.from_first(run is not None and run.is_done()):  # another process may have finished it
            return folder
        if run is not None:
            observe = stack.enter_context(loggers(place, run.path, config))
        _train(job, run, place, dataset, make_model, on_progress, observe, should_stop, group)
    return folder


def _observe_nothing(training: Training) -> None:
    pass


@contextmanager
def _random_state_kept(device: torch.device) -> Generator[None]:
    """Restore the global random state of the CPU and of this one device on exit."""
    with torch.random.fork_rng(devices=[]):  # without this list, torch would initialise every GPU of the machine
        before = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state()
        try:
            yield
        finally:
            if before is not None:
                torch.get_device_module(device).set_rng_state(before)


def folder_of(config: RunConfig, place: Place) -> RunFolder:
    """The folder of a run, which may not exist yet."""
    return RunFolder.of(place.runs, to_dict(config))


def network_of(config: RunConfig, dataset: Dataset) -> MakeModel:
    """A function that builds the configured network for the images of a data set."""
    training, channels = config.recipe.training, dataset.train.images.shape[1]
    return lambda: build_network(training.network, classes=dataset.classes, channels=channels, width=training.width)


def device_of(config: RunConfig) -> torch.device:
    """The device that a configuration names; `auto` must already be resolved, because the run's id depends on it."""
    name = config.recipe.hardware.device
    if name == "auto":
        raise ValueError("the device of a run is auto; resolve it with emabank.study.protocol.resolve first")
    return torch.device(name)


def _train(
    job: Job,
    run: RunWriter | None,
    place: Place,
    dataset: Dataset,
    make_model: MakeModel,
    on_progress: Callable[[Progress], None],
    observe: Callable[[Training], None],
    should_stop: Callable[[], bool],
    group: ProcessGroup,
) -> None:
    config = job.config
    epochs = config.recipe.training.epochs
    parts = make_parts(config.recipe.data, dataset, config.trained_on)
    training = Training(config, parts, make_model, device=device_of(config), group=group)
    targets = transfer_targets(config.transfer, place, config.recipe.data)
    for target, planned in zip(targets, config.transfer_fingerprints, strict=True):
        _check_data(target, planned)
    state = group.from_first(None if run is None else _state_to_resume_from(job, run))
    if state is not None:
        _load(training, state, "its checkpoint" if run is None else f"the checkpoint in {run.path}")
    snapshots = folder_of(config, place).path / POSTHOC
    training.recorder.keep_in(snapshots, is_first=group.is_first)
    started, first = time.monotonic(), training.epoch

    def report_progress(epoch: int, words: str) -> None:
        left = (time.monotonic() - started) / max(1, epoch - first) * (epochs - epoch)
        if run is not None:
            run.write_progress(epoch, epochs, words, seconds_left=left)
        on_progress(Progress(epoch=epoch, epochs=epochs, words=words, seconds_left=left, time=now()))

    training.run(
        run,
        forks=job.forks,
        checkpoint_seconds=place.checkpoint_seconds,
        on_epoch=report_progress,
        observe=observe,
        should_stop=should_stop,
    )
    all_kept = predict_kept(training, make_model)
    if run is None:
        for _ in all_kept:  # computes this rank's share of each
            pass
        if config.posthoc and not training.diverged:
            evaluate_grid(training, parts, snapshots, make_model)
        return
    rows = rows_of_history(run.id, config, training.measured)
    for kept in all_kept:
        about = {**to_dict(kept.keep), "mean": parts.normalisation.mean, "std": parts.normalisation.std}
        run.save_snapshot(kept.keep.name, kept.model.state_dict(), metadata=about)
        run.save_predictions(kept.keep.name, {**kept.predictions})
        rows += rows_of_kept(run.id, config, kept, training.measured_parts)
        for target in targets if is_transferred(kept.keep, config) else ():
            rows += rows_of_transfer(run.id, config, kept, parts, target)
    run.save_history(training.history())
    run.write_rows(rows)
    run.write_test_curves(rows_of_history(run.id, config, training.test_curves))
    if config.posthoc:
        measured = [] if training.diverged else evaluate_grid(training, parts, snapshots, make_model)
        run.write_posthoc(rows_of_history(run.id, config, measured))
    run.mark_done(
        {"diverged": training.diverged, "chosen": training.selector.selected(), "has_batchnorm": training.has_batchnorm}
    )


def _state_to_resume_from(job: Job, run: RunWriter) -> dict[str, Any] | None:
    _forget_damaged_forks(run)
    state = run.load_checkpoint()
    if state is None and job.fork is not None and job.fork.exists():
        try:
            return storage.read_state(job.fork)
        except ValueError as error:
            sentence = f"{error} ({job.config.recipe.training.epochs} epochs are trained from the beginning instead)"
            warnings.warn(sentence, RuntimeWarning, stacklevel=2)
    return state


def _forget_damaged_forks(run: RunWriter) -> None:
    """Remove damaged checkpoints that this run kept for other runs before it was interrupted."""
    for path in sorted((run.path / FORKS).glob("[!.]*")):
        try:
            storage.read_state(path)
        except ValueError as error:
            path.unlink()
            sentence = f"{error} (removed: runs that would start from it train from the beginning)"
            warnings.warn(sentence, RuntimeWarning, stacklevel=2)


def _load(training: Training, state: dict[str, Any], what: str) -> None:
    try:
        training.load_state_dict(state)
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        # The checkpoint is intact, so somebody may still want it, and training would overwrite it.
        raise ValueError(
            f"{what} is not one of this training ({type(error).__name__}: {error}); restore the right one, or remove "
            "it to train the run again"
        ) from error


def transfer_targets(names: Sequence[str], place: Place, data: DataConfig) -> list[Dataset]:
    """The data sets on which features are evaluated, for a network trained on `data`."""
    return [
        load_transfer_target(name, place.data, split_seed=data.split_seed, size=data.size, cache=place.cache)
        for name in names
    ]


def _check_data(dataset: Dataset, planned: str) -> None:
    current = fingerprint(dataset)
    if planned != current:
        raise ValueError(
            f"the data of {dataset.name} has changed since this run was planned (fingerprint {current}, planned with "
            f"{planned}); plan it again with the data as it is"
        )


@contextmanager
def stop_requests() -> Generator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C, SIGTERM or SIGUSR2 (sent by Slurm before it stops a job) has come.

    The training loop asks after every step, and can write a checkpoint first.
    """
    numbers, received = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2), list[int]()
    before = {number: signal.signal(number, lambda number, frame: received.append(number)) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # Ray blocks SIGINT in all its processes
    try:
        yield lambda: bool(received)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)


def encode_job(job: Job, place: Place) -> str:
    """A job as text, for the command line of a worker."""
    fork = None if job.fork is None else str(job.fork.absolute())  # a cluster worker starts in another folder
    return json.dumps({"config": to_dict(job.config), "fork": fork, "forks": list(job.forks), "place": to_dict(place)})


def decode_job(text: str) -> tuple[Job, Place]:
    """The inverse of `encode_job`."""
    values = json.loads(text)
    fork = None if values["fork"] is None else Path(values["fork"])
    job = Job(from_dict(RunConfig, values["config"], where="the job"), fork, tuple(values["forks"]))
    return job, from_dict(Place, values["place"], where="the job")


def task_of(job: Job, place: Place) -> Task:
    """The task with which an executor runs a job."""
    folder = folder_of(job.config, place)
    command = (sys.executable, "-m", WORKER, encode_job(job, place))
    count = str(job.config.recipe.hardware.threads)
    return Task(
        id=folder.id,
        title=f"{job.config.recipe.title}: {job.config.title}",
        folder=folder.path,
        command=command,
        environment={"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count},
    )


def run_job_on_rank(arguments: Sequence[str], group: ProcessGroup, on_progress: Callable[[Progress], None]) -> None:
    """Run the job that is encoded in the only argument, together with the other ranks (executors.torchrun)."""
    job, place = decode_job(arguments[0])
    with stop_requests() as should_stop, peer_loss_as_error(group):
        run_job(job, place, on_progress=on_progress, should_stop=should_stop, group=group)


def main(arguments: list[str]) -> int:
    """Run the job that `encode_job` encoded in the only argument."""
    stop_with_executor()
    keep_freed_memory()
    job, place = decode_job(arguments[0])
    try:
        with (
            stop_requests() as should_stop,
            join_group(job.config.recipe.hardware.device) as group,
            peer_loss_as_error(group),
        ):
            run_job(job, place, should_stop=should_stop, group=group)
    except Interrupted as error:
        print(error)
        return 130
    except (OSError, ValueError) as error:
        print(f"emabank: {error}")
        return LOCKED if isinstance(error, LockedError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
