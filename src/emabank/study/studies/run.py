"""Carries out studies: every run that any of them needs once, in as few rounds as their order allows.

First all tuning runs, then all refits, then what starts from refits. A pair whose runs fail is left aside with its
reason, and the others go on. May import everything of the study but the commands' arguments.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from emabank.study.carry_out import Job, folder_of
from emabank.study.config import Place, ProtocolConfig
from emabank.study.data.datasets import load_parts
from emabank.study.data.images import Dataset
from emabank.study.executors import Outcome
from emabank.study.protocol import Chosen, Planned, carry_out_protocol, choose_all, plan_protocol, resolved
from emabank.study.runs.locks import locked
from emabank.study.runs.manifest import Manifest, Ran, manifest_lock, write_manifest
from emabank.study.runs.reader import RunFolder
from emabank.study.studies.arms import arm_jobs, supposed
from emabank.study.studies.catalogue import Study, wanted
from emabank.study.studies.kinds import needs_refits
from emabank.study.studies.overhead import measure_overhead
from emabank.study.studies.scales import Scale, title_of

Round = Callable[[Sequence[Job]], Mapping[str, Outcome]]
"""Carries out jobs and tells by run id what became of each."""


@dataclass(kw_only=True)
class Pair:
    """One pair of the paper, as far as it has come."""

    name: str
    config: ProtocolConfig
    stages: frozenset[str]
    """Which runs of the protocol any study wants."""
    arms: tuple[str, ...]
    planned: Planned | None = None
    chosen: Chosen | None = None
    protocol: str | None = None
    trained: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Ids of the runs of each arm that is done."""
    failed: str = ""


def pairs_of(studies: Iterable[Study], scale: Scale, change: Callable[[ProtocolConfig], ProtocolConfig]) -> list[Pair]:
    """Every pair that the studies are about at a scale, each once, with its protocol changed and complete.

    >>> from emabank.study.studies.catalogue import studies_named
    >>> [pair.name for pair in pairs_of(studies_named("lr-search"), "demo", lambda config: config)]
    ['cifar100-resnet18', 'cifar100-wrn-28-10']
    """
    return [
        Pair(name=pair.name, config=resolved(change(pair.config)), stages=pair.stages, arms=pair.arms)
        for pair in wanted(studies, scale)
    ]


class Runner:
    """Studies on their way: their pairs, and the files that say how far they are."""

    def __init__(
        self, studies: Sequence[Study], scale: Scale, pairs: Sequence[Pair], place: Place, *, command: str
    ) -> None:
        self.studies, self.pairs, self.place, self.command = studies, pairs, place, command
        self.scale: Scale = scale
        self._overheads: list[dict[str, Any]] = []

    def run(
        self,
        load: Callable[[ProtocolConfig], Dataset],
        carry_out: Round,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> list[Manifest]:
        """Carry out everything; what each study came to, failed ones included.

        `LockedError` where another process is at one of the studies.
        """
        self.place.runs.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            for study in self.studies:
                lock = manifest_lock(study.name, self.scale, self.place.runs)
                stack.enter_context(locked(lock, what=f"the study {study.name} at scale {self.scale}"))
            return self._run(load, carry_out, say)

    def _run(
        self, load: Callable[[ProtocolConfig], Dataset], carry_out: Round, say: Callable[[str], None]
    ) -> list[Manifest]:
        self.note("running")
        for pair in self.pairs:
            self._try(pair, lambda pair: self._plan(pair, load(pair.config)))
        self._round("tuning", carry_out, say, lambda pair: pair.planned.tuning if pair.planned else [])
        for pair in self._going():
            self._try(pair, self._choose)
        self._round("refits and what needs tuning alone", carry_out, say, self._second)
        self._round("what goes on from refits", carry_out, say, self._third)
        for pair in self._going():
            self._try(pair, lambda pair: self._conclude(pair, load(pair.config)))
        if any(study.overhead for study in self.studies):
            say("what averages cost: steps and updates by turns")
            for pair in self._going():
                if any(study.overhead and pair.name in study.pairs for study in self.studies):
                    self._overheads.append(measure_overhead(pair.config, load(pair.config)))
        return self.note("done")

    def _plan(self, pair: Pair, dataset: Dataset) -> None:
        for share in ("80%", "100%"):
            load_parts(pair.config.data, dataset, share)  # a subset that does not exist is found before any run starts
        for arm in pair.arms:
            arm_jobs(arm, pair.config, supposed(pair.config, self.place), self.place)  # so is what cannot be trained
        pair.planned = plan_protocol(pair.config, self.place, dataset)

    def _choose(self, pair: Pair) -> None:
        assert pair.planned is not None
        pair.chosen = choose_all(pair.config, self.place, pair.planned)

    def _second(self, pair: Pair) -> list[Job]:
        """Refits, and arms that need nothing but the choice."""
        assert pair.chosen is not None
        arms = [arm for arm in pair.arms if not needs_refits(arm)]
        wanted = "refit" in pair.stages or "swa" in pair.stages or len(arms) < len(pair.arms)
        jobs = list(pair.chosen.refits) if wanted else []
        return jobs + [job for arm in arms for job in arm_jobs(arm, pair.config, pair.chosen, self.place)]

    def _third(self, pair: Pair) -> list[Job]:
        """SWA, and arms that are refits or go on from them."""
        assert pair.chosen is not None
        jobs = list(pair.chosen.swa) if "swa" in pair.stages else []
        arms = [arm for arm in pair.arms if needs_refits(arm)]
        return jobs + [job for arm in arms for job in arm_jobs(arm, pair.config, pair.chosen, self.place)]

    def _conclude(self, pair: Pair, dataset: Dataset) -> None:
        """Write the protocol's tables; all its runs are done by now."""
        assert pair.chosen is not None
        for arm in pair.arms:
            runs = [folder_of(job.config, self.place) for job in arm_jobs(arm, pair.config, pair.chosen, self.place)]
            pair.trained[arm] = tuple(run.id for run in runs)

        def only_look(jobs: Sequence[Job]) -> list[RunFolder]:
            return [folder_of(job.config, self.place) for job in jobs]

        done = carry_out_protocol(pair.config, self.place, dataset, only_look, stages=sorted(pair.stages))
        pair.protocol = done.folder.name

    # Rounds -----------------------------------------------------------------------------------------------------------

    def _going(self) -> list[Pair]:
        return [pair for pair in self.pairs if not pair.failed]

    def _round(
        self, what: str, carry_out: Round, say: Callable[[str], None], jobs_of: Callable[[Pair], list[Job]]
    ) -> None:
        jobs: dict[str, list[Job]] = {}

        def plan(pair: Pair) -> None:
            jobs[pair.name] = jobs_of(pair)

        for pair in self._going():
            self._try(pair, plan)
        each_once = {folder_of(job.config, self.place).id: job for some in jobs.values() for job in some}
        if not each_once:
            return
        say(f"{what}: {len(each_once)} runs")
        outcomes = carry_out(list(each_once.values()))
        for pair in self._going():
            ids = [folder_of(job.config, self.place).id for job in jobs[pair.name]]
            failed = [outcomes[run] for run in ids if outcomes[run].state == "failed"]
            if failed:
                log = failed[0].task.folder / "log.txt"
                pair.failed = f"{len(failed)} of {len(ids)} runs failed, the first with {failed[0].reason}; see {log}"
        self.note("running")

    def _try(self, pair: Pair, part: Callable[[Pair], None]) -> None:
        """Do a part of the work of one pair; what is no fault of the program sets this pair aside."""
        try:
            part(pair)
        except (ValueError, OSError) as error:
            pair.failed = str(error)

    # How far it is ----------------------------------------------------------------------------------------------------

    def note(self, state: str) -> list[Manifest]:
        """Write a file for each study that says how far it is."""
        written: list[Manifest] = []
        for study in self.studies:
            mine = [pair for pair in self.pairs if pair.name in study.pairs_at(self.scale)]
            failed = [f"{pair.name}: {pair.failed}" for pair in mine if pair.failed]
            arms = study.arms_at(self.scale)
            ran = tuple(
                Ran(
                    pair=pair.name,
                    title=title_of(pair.config),
                    protocol=pair.protocol,
                    arms={arm: pair.trained[arm] for arm in arms if arm in pair.trained},
                )
                for pair in mine
            )
            manifest = Manifest(
                study=study.name,
                scale=self.scale,
                command=self.command,
                state="failed" if failed else "done" if state == "done" else "running",
                reason="; ".join(failed),
                pairs=ran,
                overheads=tuple(self._overheads) if study.overhead else (),
            )
            write_manifest(manifest, self.place.runs)
            written.append(manifest)
        return written


def with_seeds(seeds: int | None) -> Callable[[ProtocolConfig], ProtocolConfig]:
    """Another number of seeds than the protocol has; None: as it is.

    >>> with_seeds(5)(ProtocolConfig()).seeds
    5
    """
    return lambda config: config if seeds is None else replace(config, seeds=seeds)
