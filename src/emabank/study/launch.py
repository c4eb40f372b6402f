"""From a command to work on this machine: reads the data, has the runs carried out, shows what came of it.

May import everything of the study but the commands' arguments.
"""

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from rich.console import Console

from emabank.study.carry_out import Job, folder_of, to_text, work_together
from emabank.study.config import HardwareConfig, Place, ProtocolConfig, RunConfig
from emabank.study.data.datasets import load_dataset, load_parts
from emabank.study.data.images import Dataset, fingerprint
from emabank.study.distributed import join_group, under_torchrun
from emabank.study.executors import Executor, Task, raise_if_failed
from emabank.study.executors.local import LocalExecutor
from emabank.study.executors.progress import counting
from emabank.study.executors.torchrun import TorchrunExecutor, follow
from emabank.study.protocol import CarryOut, Protocol, carry_out_protocol, resolved, tuning_jobs
from emabank.study.report.columns import protocol_tables
from emabank.study.runs.reader import RunFolder
from emabank.study.serialize import to_toml

_WORKER = "emabank.study.carry_out"
_WARM = _WORKER, "torch._dynamo"  # the latter is imported by every optimizer


def launch_protocol(config: ProtocolConfig, place: Place, *, console: Console | None = None) -> Protocol | None:
    """Carry out a protocol, and print its tables; None where another process leads (see `executing`)."""
    console = console or Console()
    config = resolved(config)
    dataset = read_data(config, place, console)
    for share in ("80%", "100%"):
        load_parts(config.data, dataset, share)  # a subset that does not exist is found before any run starts
    with executing([config.hardware], place) as executor:
        if executor is None:
            return None
        done = carry_out_protocol(
            config,
            place,
            dataset,
            locally(executor, place, console),
            say=lambda sentence: console.print(sentence, highlight=False, soft_wrap=True),
        )
    show(done, console)
    return done


def show(done: Protocol, console: Console) -> None:
    """Print the tables of a protocol, and where the rest of it is."""
    for table in protocol_tables(done.summary, width=console.width):
        console.print(table)
        console.print()
    console.print(f"Rows and tables: {done.folder}, and each run's folder beside it", highlight=False, soft_wrap=True)


def show_plan(config: ProtocolConfig, place: Place, *, console: Console | None = None) -> None:
    """Print the complete configuration as a TOML file would have it, and the tuning runs with their state.

    All of it is a TOML file: what is said beside the configuration is a comment there.
    """
    console = console or Console()
    config = resolved(config)
    dataset = read_data(config, place, Console(stderr=True))
    console.print(to_toml(config), highlight=False, markup=False, soft_wrap=True)
    for job in tuning_jobs(config, data=fingerprint(dataset)):
        folder = folder_of(job.config, place)
        console.print(f"# {title(job.config)}: {folder.path}, {folder.state()}", highlight=False, soft_wrap=True)
    swa = f" and {config.seeds} runs with SWA" if config.swa else ""
    console.print(f"# then {config.seeds} refits{swa}, with what these choose", highlight=False, soft_wrap=True)


def read_data(config: ProtocolConfig, place: Place, console: Console) -> Dataset:
    """The data set of a protocol, with a bar while images are decoded for the first time."""
    with counting(console, "images decoded") as tell:
        return load_dataset(config.data, place.data, cache=place.cache, tell=tell)


def executor_for(hardware: Sequence[HardwareConfig], place: Place) -> Executor:
    """Carries out runs where the place says: of this machine, as many at a time as it says or cores allow.

    >>> executor_for([HardwareConfig(device="cpu")], Place(jobs=3)).jobs
    3
    """
    on_cpu = all(each.device == "cpu" for each in hardware)
    threads, gpus = max((each.threads for each in hardware), default=1), 0 if on_cpu else 1
    if place.executor == "slurm":
        from emabank.study.executors.slurm import SlurmExecutor

        return SlurmExecutor(
            folder=place.runs.absolute() / "slurm",
            jobs=place.jobs,
            cpus=threads,
            gpus=gpus,
            settings=place.slurm_settings(),
            retries=place.retries,
        )
    if place.executor == "ray":
        from emabank.study.executors.ray import RayExecutor

        return RayExecutor(address=place.address, jobs=place.jobs, cpus=threads, gpus=gpus, retries=place.retries)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs = place.jobs or (max(1, cores // threads) if on_cpu else 1)
    # A GPU is left to processes that start from nothing.
    return LocalExecutor(jobs=jobs, warm=_WARM if on_cpu else ())


@contextmanager
def executing(hardware: Sequence[HardwareConfig], place: Place) -> Generator[Executor | None]:
    """What carries out runs, as long as the context lasts; None where another process leads and this one has followed
    it to the end.

    Under torchrun its processes carry out each run together.
    """
    if not under_torchrun():
        yield executor_for(hardware, place)
        return
    if place.executor != "local":
        raise ValueError(f"--executor {place.executor} under torchrun: leave one of them out")
    with join_group(hardware[0].device) as group:
        if not group.is_first:
            follow(group, work_together)
            yield None
            return
        executor = TorchrunExecutor(group=group, work=work_together)
        yield executor
        executor.release()  # after a failure torchrun ends the others


def locally(executor: Executor, place: Place, console: Console) -> CarryOut:
    """Carries out jobs, all of which must succeed."""
    place = place.absolute()

    def carry_out(tasks: Sequence[Job]) -> list[RunFolder]:
        place.runs.mkdir(parents=True, exist_ok=True)  # so is a folder that cannot be made
        raise_if_failed(executor.run_all([task_of(job, place) for job in tasks], console=console))
        return [folder_of(job.config, place) for job in tasks]

    return carry_out


def task_of(job: Job, place: Place) -> Task:
    """The process that carries out a job."""
    folder = folder_of(job.config, place)
    command = (sys.executable, "-m", _WORKER, to_text(job, place))
    threads = str(job.config.recipe.hardware.threads)
    return Task(
        id=folder.id,
        title=title(job.config),
        folder=folder.path,
        command=command,
        environment={"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
    )


def title(config: RunConfig) -> str:
    """What a run is called in front of people."""
    return f"{_kind(config)}, rate {config.rate:g}, seed {config.seed}"


def _kind(config: RunConfig) -> str:
    training = config.recipe.training
    if config.swa:
        return "SWA"
    if config.constant_from is not None:
        return f"rate held from epoch {config.constant_from}"
    kind = "tune" if config.trained_on == "80%" else "refit"
    if training.bootstrap is not None:
        kind += f", bootstrap from {training.bootstrap}"
    if config.posthoc:
        kind += ", with snapshots"
    if training.schedule == "step":
        kind += ", step decay"
    elif config.trained_on == "100%" and not config.keep:  # a refit keeps what was chosen; this one is beside it
        kind += f", averages every {config.recipe.averages.every}"
    return kind
