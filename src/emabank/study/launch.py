"""From the commands `run` and `protocol` to work: reads the data, makes an executor, shows what came of it."""

import os
import shlex
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from rich.console import Console

from emabank.study.config import DataConfig, HardwareConfig, Place, ProtocolConfig
from emabank.study.data.datasets import load_dataset
from emabank.study.data.images import Dataset, fingerprint
from emabank.study.distributed import join_group, under_torchrun
from emabank.study.executors import Executor, Outcome
from emabank.study.executors.local import LocalExecutor
from emabank.study.executors.progress import counting, duration, say
from emabank.study.executors.torchrun import TorchrunExecutor, follow
from emabank.study.protocol import Protocol, choose_all, plan_protocol, resolve, tuning_jobs
from emabank.study.report.render import terminal
from emabank.study.report.results import read_setting
from emabank.study.report.table_specs import protocol_tables
from emabank.study.run_job import WORKER, Job, folder_of, task_of, title, work_together
from emabank.study.runs.environment import cores
from emabank.study.runs.manifest import Manifest
from emabank.study.serialize import to_toml
from emabank.study.studies.catalogue import Study
from emabank.study.studies.cost import NOTHING, Cost, Speed, cost_of, operations
from emabank.study.studies.estimate import measure_speed
from emabank.study.studies.scales import Scale, title_of
from emabank.study.studies.scheduler import (
    RunJobs,
    Setting,
    run_setting,
    run_studies,
    settings_of,
    variant_jobs,
)
from emabank.study.studies.variants import example_config, runs_needed

_WARM = WORKER, "torch._dynamo"  # the latter is imported by every optimizer

Change = Callable[[ProtocolConfig], ProtocolConfig]


def launch_protocol(config: ProtocolConfig, place: Place, *, console: Console | None = None) -> Protocol | None:
    """Run a protocol, and print its tables; None where another process leads (see `executing`)."""
    console = console or Console()
    config = resolve(config)
    dataset = read_data(config, place, console)
    with executing([config.hardware], place) as executor:
        if executor is None:
            return None
        setting = Setting(name="protocol", config=config)
        run_jobs = jobs_on(executor, place, console)
        done = run_setting(setting, place, dataset=dataset, run_jobs=run_jobs, say=partial(say, console))
    show(done, console)
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
    """Run studies; False when some could not be finished."""
    console = console or Console()
    settings = settings_of(studies, scale, change)
    place = place.absolute()
    with executing([setting.config.hardware for setting in settings], place) as executor:
        if executor is None:
            return True
        manifests = run_studies(
            studies,
            scale,
            settings,
            place,
            command=command,
            load=_loader(place, console),
            run_jobs=jobs_on(executor, place, console),
            say=partial(say, console),
        )
    return _show_end(manifests, place, partial(say, console))


def jobs_on(executor: Executor, place: Place, console: Console) -> RunJobs:
    """Runs jobs with an executor."""
    place = place.absolute()

    def run_jobs(jobs: Sequence[Job]) -> Mapping[str, Outcome]:
        outcomes = executor.run_all([task_of(job, place) for job in jobs], console=console)
        return {outcome.task.id: outcome for outcome in outcomes}

    return run_jobs


def show(done: Protocol, console: Console) -> None:
    """Print the tables of a protocol, and where the rest of it is."""
    for table in protocol_tables(read_setting(done.folder)):
        console.print(terminal(table, width=console.width))
        console.print()
    say(console, f"Rows and tables: {done.folder}, and each run's folder beside it")


def _show_end(manifests: Sequence[Manifest], place: Place, say: Callable[[str], None]) -> bool:
    failed = [manifest for manifest in manifests if manifest.state != "done"]
    for manifest in failed:
        say(f"{manifest.study} could not be finished: {manifest.reason}")
    done = [manifest.study for manifest in manifests if manifest.state == "done"]
    if done:
        is_default = place.runs == Path("runs").absolute()
        runs = "" if is_default else f" {shlex.quote(os.path.relpath(place.runs))}"
        say(f"done: {', '.join(done)}")
        say(
            f"Next: `emabank report{runs}` for tables, figures and an HTML page, or `emabank claims{runs}` to check "
            "the results against the paper."
        )
    return not failed


def _loader(place: Place, console: Console) -> Callable[[ProtocolConfig], Dataset]:
    """Reads each data set once."""

    @cache
    def load(data: DataConfig) -> Dataset:
        return read_data(ProtocolConfig(data=data), place, console)

    return lambda config: load(config.data)


def read_data(config: ProtocolConfig, place: Place, console: Console) -> Dataset:
    """The data set of a protocol, with a bar while images are decoded for the first time."""
    with counting(console, "images decoded") as tell:
        return load_dataset(config.data, place.data, cache=place.cache, tell=tell)


# Executors -----------------------------------------------------------------------------------------------------------


def executor_for(hardware: Sequence[HardwareConfig], place: Place) -> Executor:
    """Runs jobs where the place says: on this machine, as many at a time as it says or cores allow."""
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
    # A GPU is left to processes that start from nothing.
    return LocalExecutor(jobs=jobs, warm=_WARM if on_cpu else ())


@contextmanager
def executing(hardware: Sequence[HardwareConfig], place: Place) -> Generator[Executor | None]:
    """The executor, as long as the context lasts; None where another process leads and this one has followed it to the
    end.

    Under torchrun its processes train each run together.
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


# Dry runs ------------------------------------------------------------------------------------------------------------


def show_plan(config: ProtocolConfig, place: Place, *, console: Console | None = None) -> None:
    """Print the complete configuration as a TOML file would have it, and the tuning runs with their state.

    All of it is a TOML file: what is said beside the configuration is a comment there.
    """
    console = console or Console()
    config = resolve(config)
    dataset = read_data(config, place, Console(stderr=True))
    say(console, to_toml(config))
    for job in tuning_jobs(config, data=fingerprint(dataset)):
        folder = folder_of(job.config, place)
        say(console, f"# {title(job.config)}: {folder.path}, {folder.state()}")
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
    """Print the runs of studies, which of them are done, and what the others will cost on this machine."""
    console = console or Console()
    place = place.absolute()
    load, line = _loader(place, console), partial(say, console)
    settings = settings_of(studies, scale, change)
    plan = _Plan(place, line)
    for setting in settings:
        line(f"{title_of(setting.config)}, for {setting.name}")
        try:
            known = _known_jobs(setting, place, load(setting.config))
            words = "then, with what tuning chooses"
        except FileNotFoundError as error:  # what it would cost is known without the data
            line(f"  {error}")
            known, words = dict[str, list[Job]](), "with these"
        for kind, jobs in known.items():
            plan.add(setting, kind, jobs)
        plan.add_later(setting, Counter({kind: n for kind, n in _needed(setting).items() if kind not in known}), words)
    jobs = executor_for([setting.config.hardware for setting in settings], place).jobs or 1
    line(
        f"{plan.done} runs are done, {plan.waiting} to be trained: {operations(plan.cost.flops)}, about "
        f"{duration(plan.cost.seconds / jobs)} with {jobs} at a time, estimated from a few images just now on this "
        "machine."
    )


class _Plan:
    """What is to be trained, as it adds up; what settings share counts once, and each network is timed once."""

    def __init__(self, place: Place, say: Callable[[str], None]) -> None:
        self.done, self.waiting, self.cost = 0, 0, NOTHING
        self._place, self._say = place, say
        self._owners: dict[str, str] = {}
        self._later: dict[ProtocolConfig, Counter[str]] = {}
        self._speeds: dict[tuple[str, int | None, str, int | None], Speed] = {}

    def add(self, setting: Setting, kind: str, jobs: Sequence[Job]) -> None:
        """Runs that are known already, of one kind."""
        for job in jobs:
            folder = folder_of(job.config, self._place)
            words = folder.state()
            if folder.id in self._owners:
                words = f"shared with {self._owners[folder.id]}"
            elif words == "done":
                self.done += 1
            else:
                words += f", about {duration(self._wait_for(setting.config, kind, 1).seconds)}"
            self._owners.setdefault(folder.id, setting.name)
            self._say(f"  {title(job.config)}: {words}")

    def add_later(self, setting: Setting, needed: Counter[str], words: str) -> None:
        """Runs of which no more is known than how many they will be."""
        before = self._later.get(setting.config, Counter[str]())
        self._later[setting.config] = before | needed
        for kind, count in (needed - before).items():
            self._wait_for(setting.config, kind, count)
        if needed:
            listed = [f"{n} {kind}{' (shared)' if kind in before else ''}" for kind, n in needed.items()]
            self._say(f"  {words}: {', '.join(listed)}")

    def _wait_for(self, config: ProtocolConfig, kind: str, count: int) -> Cost:
        network = config.training.network, config.training.width, config.data.dataset, config.data.size
        if network not in self._speeds:
            self._speeds[network] = measure_speed(example_config("tune", config))
        cost = cost_of(example_config(kind, config), self._speeds[network]).times(count)
        self.waiting, self.cost = self.waiting + count, self.cost + cost
        return cost


def _known_jobs(setting: Setting, place: Place, dataset: Dataset) -> dict[str, list[Job]]:
    """The runs of a setting by kind, as far as they are known: what follows from tuning is, once that is done."""
    planned = plan_protocol(setting.config, place, dataset)
    jobs = {"tune": planned.tuning}
    if not all(folder_of(job.config, place).is_done() for job in planned.tuning):
        return jobs
    try:
        chosen = choose_all(setting.config, place, planned)
    except ValueError:  # diverged at every learning rate: the run itself will say so
        return jobs
    jobs |= {"refit": chosen.refits, "swa": chosen.swa}
    jobs |= {arm: variant_jobs(arm, setting.config, chosen, place) for arm in setting.arms}
    return {kind: jobs[kind] for kind in _needed(setting)}


def _needed(setting: Setting) -> Counter[str]:
    return runs_needed(setting.config, setting.stages, setting.arms)
