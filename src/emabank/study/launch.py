"""The commands `run` and `protocol`: read the data, make an executor, run the jobs, show the results.

Results go to standard output, progress and warnings to standard error.
"""

import os
import shlex
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path

from rich.console import Console

from emabank.study.config import DataConfig, HardwareConfig, Place, ProtocolConfig
from emabank.study.data.datasets import load_dataset
from emabank.study.data.images import Dataset, fingerprint
from emabank.study.distributed import join_group, under_torchrun
from emabank.study.executors import Executor, Outcome, engine
from emabank.study.executors.local import LocalExecutor
from emabank.study.executors.progress import counting, duration, say
from emabank.study.executors.torchrun import TorchrunExecutor, follow
from emabank.study.protocol import Protocol, choose_all, plan_protocol, resolve, tuning_jobs
from emabank.study.report.render import terminal
from emabank.study.report.results import read_results, read_setting
from emabank.study.report.table_specs import make_tables, protocol_tables
from emabank.study.run_job import WORKER, Job, folder_of, run_job_on_rank, task_of
from emabank.study.runs.environment import cores
from emabank.study.runs.manifest import Manifest
from emabank.study.serialize import to_toml
from emabank.study.studies.catalogue import Setting, Study, settings_of
from emabank.study.studies.cost import Cost, cost_of, measure_speed, operations
from emabank.study.studies.scales import Scale
from emabank.study.studies.scheduler import (
    Load,
    RunJobs,
    jobs_by_kind,
    placeholder_choices,
    run_setting,
    run_studies,
)

_WARM = WORKER, "torch._dynamo"  # imported before forking; every optimizer imports the latter
_ENGINES = {"slurm": "submitit", "ray": "ray"}

Change = Callable[[ProtocolConfig], ProtocolConfig]


def launch_protocol(config: ProtocolConfig, place: Place, *, console: Console | None = None) -> Protocol | None:
    """Run a protocol, and print its tables; None on all ranks but the first (see `open_executor`)."""
    stderr = console or Console(stderr=True)
    config = resolve(config)
    dataset = read_data(config.data, place, stderr)
    with open_executor([config.hardware], place) as executor:
        if executor is None:
            return None
        return run_and_show(Setting(name="protocol", config=config), dataset, executor, place, console=console)


def run_and_show(
    setting: Setting, dataset: Dataset, executor: Executor, place: Place, *, console: Console | None
) -> Protocol:
    """Run one setting; print its tables, and the folder with the rest."""
    stderr, console = console or Console(stderr=True), console or Console()
    run_jobs = jobs_on(executor, place, stderr)
    done = run_setting(setting, place, dataset=dataset, run_jobs=run_jobs, say=partial(say, stderr))
    for table in protocol_tables(read_setting(done.folder)):
        console.print(terminal(table, width=console.width))
        console.print()
    say(console, f"Rows and tables: {done.folder}, and each run's folder beside it")
    return done


def launch_studies(
    studies: Sequence[Study],
    scale: Scale,
    place: Place,
    *,
    command: str,
    change: Change = lambda config: config,
    console: Console | None = None,
) -> bool:
    """Run studies; False if some could not be finished."""
    stderr = console or Console(stderr=True)
    settings = settings_of(studies, scale, lambda config: resolve(change(config)))
    place = place.absolute()
    with open_executor([setting.config.hardware for setting in settings], place) as executor:
        if executor is None:
            return True
        manifests = run_studies(
            studies,
            scale,
            settings,
            place,
            command=command,
            load=_loader(place, stderr),
            run_jobs=jobs_on(executor, place, stderr),
            say=partial(say, stderr),
        )
    failed = [manifest for manifest in manifests if manifest.state != "done"]
    for manifest in failed:
        say(stderr, f"{manifest.study} could not be finished: {manifest.reason}")
    done = [manifest for manifest in manifests if manifest.state == "done"]
    if done:
        _show_end(done, place.runs, console or Console())
    return not failed


def jobs_on(executor: Executor, place: Place, console: Console) -> RunJobs:
    """A function that runs jobs with an executor."""
    place = place.absolute()

    def run_jobs(jobs: Sequence[Job], *, before: int = 0, total: int = 0) -> Mapping[str, Outcome]:
        tasks = [task_of(job, place) for job in jobs]
        outcomes = executor.run_all(tasks, console=console, before=before, total=total)
        return {outcome.task.id: outcome for outcome in outcomes}

    return run_jobs


def _show_end(done: Sequence[Manifest], runs: Path, console: Console) -> None:
    """Print the first table of the first study, and what to do next."""
    prefix = f"{done[0].scale}/{done[0].study}/"
    headline = next((table for table in make_tables(read_results(runs)) if table.name.startswith(prefix)), None)
    if headline is not None:
        console.print(terminal(headline, width=console.width))
        console.print()
    named = "" if runs == Path("runs").absolute() else f" {shlex.quote(os.path.relpath(runs))}"
    say(console, f"done: {', '.join(manifest.study for manifest in done)}")
    say(
        console,
        f"Next: `emabank report{named}` for tables, figures and an HTML page, or `emabank claims{named}` to check the "
        "results against the paper.",
    )


def _loader(place: Place, console: Console) -> Callable[[ProtocolConfig], Dataset]:
    """A function that reads each data set only once."""

    @cache
    def load(data: DataConfig) -> Dataset:
        return read_data(data, place, console)

    return lambda config: load(config.data)


def read_data(data: DataConfig, place: Place, console: Console) -> Dataset:
    """Read a data set, with a progress bar while its images are decoded for the first time."""
    with counting(console, "images decoded") as progress:
        return load_dataset(data, place.data, cache=place.cache, progress=progress)


# Executors -----------------------------------------------------------------------------------------------------------


def executor_for(hardware: Sequence[HardwareConfig], place: Place) -> Executor:
    """The executor that a place asks for; on this machine it runs `jobs` at a time, or as many as fit."""
    on_cpu = all(config.device == "cpu" for config in hardware)
    threads, gpus = max((config.threads for config in hardware), default=1), 0 if on_cpu else 1
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
    jobs = place.jobs or (max(1, cores() // threads) if on_cpu else 1)
    # Not on a GPU: a forked process cannot use it.
    return LocalExecutor(jobs=jobs, warm=_WARM if on_cpu else ())


@contextmanager
def open_executor(hardware: Sequence[HardwareConfig], place: Place) -> Generator[Executor | None]:
    """Yield the executor. Under torchrun, where all processes train each run together, only the first one gets it.

    The others take part in every run until there are no more, and then get None.
    """
    if not under_torchrun():
        if place.executor != "local":
            # Checked before a study's manifest says that it is running. A dry run does not need these packages.
            engine(_ENGINES[place.executor], executor=place.executor)
        yield executor_for(hardware, place)
        return
    if place.executor != "local":
        raise ValueError(f"--executor {place.executor} under torchrun: leave one of them out")
    with join_group(hardware[0].device) as group:
        if not group.is_first:
            follow(group, run_job_on_rank)
            yield None
            return
        executor = TorchrunExecutor(group=group, work=run_job_on_rank)
        yield executor
        executor.release()  # after a failure torchrun ends the other processes


# Dry runs ------------------------------------------------------------------------------------------------------------


def show_plan(config: ProtocolConfig, place: Place, *, console: Console | None = None) -> None:
    """Print the complete configuration as a valid TOML file, with the tuning runs and their states as comments."""
    console = console or Console()
    config = resolve(config)
    dataset = read_data(config.data, place, Console(stderr=True))
    say(console, to_toml(config))
    for job in tuning_jobs(config, data=fingerprint(dataset)):
        folder = folder_of(job.config, place)
        say(console, f"# {job.config.title}: {folder.path}, {folder.state()}")
    seeds = len(config.seed_numbers)
    swa = f" and {seeds} runs with SWA" if config.swa else ""
    say(console, f"# then {seeds} refits{swa}, with what these choose")


def show_studies_plan(
    studies: Sequence[Study],
    scale: Scale,
    place: Place,
    *,
    change: Change = lambda config: config,
    console: Console | None = None,
) -> None:
    """Print the runs of studies, which of them are done, and what the others will cost on this machine.

    Runs that settings share count once, and each network is timed once.
    """
    console = console or Console()
    place, line = place.absolute(), partial(say, console)
    load, speed = _loader(place, Console(stderr=True)), cache(measure_speed)
    settings = settings_of(studies, scale, lambda config: resolve(change(config)))
    owners: dict[str, str] = {}
    done, waiting, total = 0, 0, Cost()
    for setting in settings:
        line(f"{setting.config.title}, for {setting.name}")
        known, later, words = _jobs_before_and_after_tuning(setting, place, load, line)
        shared: Counter[str] = Counter()
        for kind, job in [(kind, job) for kind, jobs in {**known, **later}.items() for job in jobs]:
            folder = folder_of(job.config, place)
            state = folder.state()
            if folder.id in owners:
                state = f"shared with {owners[folder.id]}"
                shared[kind] += 1
            elif state == "done":
                done += 1
            else:
                data, training = job.config.recipe.data, job.config.recipe.training
                network = training.network, training.width, training.batch, data.dataset, data.size
                cost = cost_of(job.config, speed(*network, job.config.recipe.hardware))
                waiting, total, state = waiting + 1, total + cost, f"{state}, about {duration(cost.seconds)}"
            owners.setdefault(folder.id, setting.name)
            if kind in known:
                line(f"  {job.config.title}: {state}")
        if later:
            counted = (f"{len(jobs)} {kind}{' (shared)' if shared[kind] else ''}" for kind, jobs in later.items())
            line(f"  {words}: {', '.join(counted)}")
    jobs = executor_for([setting.config.hardware for setting in settings], place).jobs or 1
    if not waiting:
        line(f"{done} runs are done, 0 to be trained.")
        return
    line(
        f"{done} runs are done, {waiting} to be trained: {operations(total.flops)}, about "
        f"{duration(total.seconds / jobs)} with {jobs} at a time, estimated from a few images just now on this "
        "machine. Starting a run takes a few seconds more."
    )


def _jobs_before_and_after_tuning(
    setting: Setting, place: Place, load: Load, line: Callable[[str], None]
) -> tuple[dict[str, list[Job]], dict[str, list[Job]], str]:
    """The runs of a setting by kind: those known now, those that follow from tuning, and words to introduce these."""
    config = setting.config
    later = jobs_by_kind(setting, placeholder_choices(config, place), place)
    try:
        planned = plan_protocol(config, place, load(config))
    except FileNotFoundError as error:  # the cost can be estimated without the data
        line(f"  {error}")
        return {}, {"tune": tuning_jobs(config, data=""), **later}, "with these"
    known = {"tune": planned.tuning}
    if all(folder_of(job.config, place).is_done() for job in planned.tuning):
        with suppress(ValueError):  # diverged at every learning rate, which the run itself will report
            known |= jobs_by_kind(setting, choose_all(config, place, planned), place)
            later = {}
    return known, later, "then, with what tuning chooses"
