"""From `emabank run` to work on this machine: studies planned, carried out, and told of.

May import everything of the study but the commands' arguments.
"""

import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from rich.console import Console

from emabank.study.carry_out import Job, folder_of
from emabank.study.config import DataConfig, Place, ProtocolConfig
from emabank.study.data.images import Dataset
from emabank.study.executors import Outcome
from emabank.study.executors.progress import duration
from emabank.study.launch import executing, executor_for, read_data, task_of, title
from emabank.study.protocol import Chosen, Planned, choose_all, plan_protocol
from emabank.study.runs.manifest import Manifest
from emabank.study.studies.arms import arm_jobs
from emabank.study.studies.catalogue import Study
from emabank.study.studies.cost import NOTHING, Cost, Speed, cost_of, operations
from emabank.study.studies.estimate import measure_speed
from emabank.study.studies.kinds import run_of, runs_needed
from emabank.study.studies.run import Pair, Runner, pairs_of
from emabank.study.studies.scales import Scale, title_of

Change = Callable[[ProtocolConfig], ProtocolConfig]


def launch_studies(
    studies: Sequence[Study],
    scale: Scale,
    place: Place,
    *,
    command: str,
    change: Change = lambda config: config,
    console: Console | None = None,
) -> bool:
    """Carry out studies in worker processes of this machine; False when some could not be finished."""
    console = console or Console()
    pairs = pairs_of(studies, scale, change)
    place = place.absolute()

    with executing([pair.config.hardware for pair in pairs], place) as executor:
        if executor is None:
            return True

        def carry_out(jobs: Sequence[Job]) -> Mapping[str, Outcome]:
            tasks = [task_of(job, place) for job in jobs]
            return {outcome.task.id: outcome for outcome in executor.run_all(tasks, console=console)}

        runner = Runner(studies, scale, pairs, place, command=command)
        manifests = runner.run(_loader(place, console), carry_out, _saying(console))
    return _told(manifests, place, _saying(console))


def _saying(console: Console) -> Callable[[str], None]:
    """Prints sentences as they are, each in one line."""
    return lambda sentence: console.print(sentence, highlight=False, markup=False, soft_wrap=True)


def _told(manifests: Sequence[Manifest], place: Place, say: Callable[[str], None]) -> bool:
    failed = [each for each in manifests if each.state != "done"]
    for each in failed:
        say(f"{each.study} could not be finished: {each.reason}")
    done = [each.study for each in manifests if each.state == "done"]
    if done:
        runs = _shown(place.runs)
        say(f"done: {', '.join(done)}")
        say(
            f"next: `emabank report{runs}` makes tables, figures and a page of it, `emabank claims{runs}` holds it "
            "against the paper's claims"
        )
    return not failed


def _shown(runs: Path) -> str:
    """The folder of runs as it is typed behind a command; nothing for the one that is looked into by default."""
    return "" if runs == Path("runs").absolute() else f" {shlex.quote(os.path.relpath(runs))}"


def _loader(place: Place, console: Console) -> Callable[[ProtocolConfig], Dataset]:
    """Reads each data set once."""

    @cache
    def load(data: DataConfig) -> Dataset:
        return read_data(ProtocolConfig(data=data), place, console)

    return lambda config: load(config.data)


# A dry run ------------------------------------------------------------------------------------------------------------


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
    load, say = _loader(place, console), _saying(console)
    pairs = pairs_of(studies, scale, change)
    plan = _Plan(place, say)
    for pair in pairs:
        say(f"{title_of(pair.config)}, for {pair.name}")
        try:
            known = _jobs(pair, plan_protocol(pair.config, place, load(pair.config)), place)
            words = "then, with what tuning chooses"
        except FileNotFoundError as error:  # what it would cost is known without the data
            say(f"  {error}")
            known, words = dict[str, list[Job]](), "with these"
        for kind, jobs in known.items():
            plan.add(pair, kind, jobs)
        plan.add_later(pair, Counter({kind: n for kind, n in _needed(pair).items() if kind not in known}), words)
    jobs = executor_for([pair.config.hardware for pair in pairs], place).jobs or 1
    say(
        f"{plan.done} runs are done, {plan.waiting} to be trained: {operations(plan.cost.flops)}, about "
        f"{duration(plan.cost.seconds / jobs)} with {jobs} at a time, estimated from a few images just now on this "
        "machine."
    )


class _Plan:
    """What is to be trained, as it adds up; what pairs share counts once."""

    def __init__(self, place: Place, say: Callable[[str], None]) -> None:
        self.done, self.waiting, self.cost = 0, 0, NOTHING
        self._place, self._say, self._speeds = place, say, _Speeds()
        self._known: dict[str, str] = {}
        self._later: dict[ProtocolConfig, Counter[str]] = {}

    def add(self, pair: Pair, kind: str, jobs: Sequence[Job]) -> None:
        """Runs that are known already, of one kind."""
        for job in jobs:
            folder = folder_of(job.config, self._place)
            words = folder.state()
            if folder.id in self._known:
                words = f"shared with {self._known[folder.id]}"
            elif words == "done":
                self.done += 1
            else:
                words += f", about {duration(self._wait_for(pair.config, kind, 1).seconds)}"
            self._known.setdefault(folder.id, pair.name)
            self._say(f"  {title(job.config)}: {words}")

    def add_later(self, pair: Pair, needed: Counter[str], words: str) -> None:
        """Runs of which no more is known than how many they will be."""
        before = self._later.get(pair.config, Counter[str]())
        self._later[pair.config] = before | needed
        for kind, count in (needed - before).items():
            self._wait_for(pair.config, kind, count)
        if needed:
            listed = [f"{n} {kind}{' (shared)' if kind in before else ''}" for kind, n in needed.items()]
            self._say(f"  {words}: {', '.join(listed)}")

    def _wait_for(self, config: ProtocolConfig, kind: str, count: int) -> Cost:
        cost = self._speeds.cost(config, kind).times(count)
        self.waiting, self.cost = self.waiting + count, self.cost + cost
        return cost


def _jobs(pair: Pair, planned: Planned, place: Place) -> dict[str, list[Job]]:
    """The runs of a pair by kind, as far as they are known: what follows from tuning is, once that is done."""
    found = {"tune": planned.tuning}
    if not all(folder_of(job.config, place).is_done() for job in planned.tuning):
        return found
    try:
        chosen = choose_all(pair.config, place, planned)
    except ValueError:  # diverged at every learning rate: the run itself will say so
        return found
    return found | {kind: _of_kind(kind, pair.config, chosen, place) for kind in _needed(pair) if kind != "tune"}


def _of_kind(kind: str, config: ProtocolConfig, chosen: Chosen, place: Place) -> list[Job]:
    if kind in ("refit", "swa"):
        return chosen.refits if kind == "refit" else chosen.swa
    return arm_jobs(kind, config, chosen, place)


def _needed(pair: Pair) -> Counter[str]:
    return runs_needed(pair.config, pair.stages, pair.arms)


class _Speeds:
    """What runs cost on this machine; each network is measured once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int | None, str], Speed] = {}

    def cost(self, config: ProtocolConfig, kind: str) -> Cost:
        key = config.training.network, config.training.width, config.data.dataset
        if key not in self._known:
            self._known[key] = measure_speed(run_of("tune", config))
        return cost_of(run_of(kind, config), self._known[key])
