"""Runs settings through the protocol: every run that any of them needs once, in as few rounds as their order allows.

First all tuning runs, then all refits and the variants that need no refit, then what starts from refits. A setting
whose runs fail is set aside with its reason, and the others continue. `run` uses it with the settings of studies,
`protocol` and `run_protocol` with one of their own.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from emabank.study.averages import CRITERIA, NOISY_CRITERIA
from emabank.study.config import Place, ProtocolConfig
from emabank.study.data.images import Dataset
from emabank.study.executors import Outcome, raise_if_failed
from emabank.study.protocol import (
    Choice,
    Chosen,
    Planned,
    Protocol,
    choose_all,
    conclude,
    held_from,
    plan_protocol,
    refit_job,
    resolve,
    swa_job,
    tuning_jobs,
)
from emabank.study.run_job import Job, MakeModel, folder_of
from emabank.study.runs.locks import locked
from emabank.study.runs.manifest import Manifest, Ran, manifest_lock, write_manifest
from emabank.study.studies.catalogue import Study, wanted
from emabank.study.studies.overhead import measure_overhead
from emabank.study.studies.scales import Scale, title_of
from emabank.study.studies.variants import equals_refit, needs_refits, variant_config

Load = Callable[[ProtocolConfig], Dataset]
RunJobs = Callable[[Sequence[Job]], Mapping[str, Outcome]]
"""Runs jobs and returns by run id what became of each."""
Say = Callable[[str], None]


@dataclass(kw_only=True)
class Setting:
    """A data set with a network, as far as it has come."""

    name: str
    config: ProtocolConfig
    stages: frozenset[str] = frozenset({"tune", "refit", "swa"})
    """Which runs of the protocol are wanted."""
    arms: tuple[str, ...] = ()
    """Which variants are wanted beside them."""
    make_model: MakeModel | None = None
    model_fingerprint: str = ""
    planned: Planned | None = None
    chosen: Chosen | None = None
    protocol: Protocol | None = None
    trained: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Ids of the runs of each variant that is done."""
    error: ValueError | OSError | None = None
    """Why it was set aside."""


def settings_of(
    studies: Iterable[Study], scale: Scale, change: Callable[[ProtocolConfig], ProtocolConfig] = lambda config: config
) -> list[Setting]:
    """Every setting that the studies are about at a scale, once, with its protocol changed and complete."""
    return [
        Setting(name=setting.name, config=resolve(change(setting.config)), stages=setting.stages, arms=setting.arms)
        for setting in wanted(studies, scale)
    ]


class Scheduler:
    """Settings on their way, in rounds; `after_round` is called after each."""

    def __init__(
        self,
        settings: Sequence[Setting],
        place: Place,
        *,
        load: Load,
        run_jobs: RunJobs,
        say: Say = lambda sentence: None,
        after_round: Callable[[], object] = lambda: None,
    ) -> None:
        self.settings, self.place = settings, place
        self._load, self._run_jobs, self._say, self._after_round = load, run_jobs, say, after_round

    def run(self) -> None:
        """Train everything that is not done, and write the rows and summaries of the protocols."""
        self._each(self._plan)
        self._round("tuning", lambda setting: setting.planned.tuning if setting.planned else [])
        self._each(self._choose)
        self._round("refits, and runs that need only tuning", self._second_round)
        self._round("runs that start from refits", self._third_round)
        self._each(self._conclude)

    def active(self) -> list[Setting]:
        """The settings that were not set aside."""
        return [setting for setting in self.settings if setting.error is None]

    def _plan(self, setting: Setting) -> None:
        dataset = self._load(setting.config)
        for arm in setting.arms:  # what cannot be trained is found before any run starts
            variant_jobs(arm, setting.config, placeholder_choices(setting.config, self.place), self.place)
        setting.planned = plan_protocol(
            setting.config,
            self.place,
            dataset,
            make_model=setting.make_model,
            model_fingerprint=setting.model_fingerprint,
        )

    def _choose(self, setting: Setting) -> None:
        assert setting.planned is not None
        setting.chosen = choose_all(setting.config, self.place, setting.planned)
        if len(self.settings) == 1:
            for choice in setting.chosen.choices:
                (best, epoch), (lowest, lowest_epoch) = (choice.averages[criterion] for criterion in CRITERIA)
                self._say(
                    f"seed {choice.seed} chose rate {choice.rate:g}; {best} at epoch {epoch} (accuracy), "
                    f"{lowest} at {lowest_epoch} (loss)"
                )

    def _second_round(self, setting: Setting) -> list[Job]:
        """Refits, and variants that need nothing but the choice."""
        assert setting.chosen is not None
        need_refits = bool(setting.stages & {"refit", "swa"}) or any(map(needs_refits, setting.arms))
        jobs = list(setting.chosen.refits) if need_refits else []
        return jobs + self._variants(setting, [arm for arm in setting.arms if not needs_refits(arm)])

    def _third_round(self, setting: Setting) -> list[Job]:
        """SWA, and variants that are refits or start from them."""
        assert setting.chosen is not None
        jobs = list(setting.chosen.swa) if "swa" in setting.stages else []
        return jobs + self._variants(setting, [arm for arm in setting.arms if needs_refits(arm)])

    def _variants(self, setting: Setting, arms: Sequence[str]) -> list[Job]:
        assert setting.chosen is not None
        return [job for arm in arms for job in variant_jobs(arm, setting.config, setting.chosen, self.place)]

    def _conclude(self, setting: Setting) -> None:
        assert setting.planned is not None
        assert setting.chosen is not None
        for arm in setting.arms:
            jobs = variant_jobs(arm, setting.config, setting.chosen, self.place)
            setting.trained[arm] = tuple(folder_of(job.config, self.place).id for job in jobs)
        setting.protocol = conclude(setting.config, self.place, setting.planned, setting.chosen, setting.stages)

    def _round(self, title: str, jobs_of: Callable[[Setting], list[Job]]) -> None:
        jobs: dict[str, list[Job]] = {}

        def plan(setting: Setting) -> None:
            jobs[setting.name] = jobs_of(setting)

        self._each(plan)
        by_id = {folder_of(job.config, self.place).id: job for some in jobs.values() for job in some}
        if not by_id:
            return
        self._say(f"{title}: {len(by_id)} runs")
        self.place.runs.mkdir(parents=True, exist_ok=True)
        outcomes = self._run_jobs(list(by_id.values()))
        self._each(
            lambda setting: raise_if_failed(
                [outcomes[folder_of(job.config, self.place).id] for job in jobs[setting.name]]
            )
        )
        self._after_round()

    def _each(self, part: Callable[[Setting], None]) -> None:
        """Do a part of the work of every active setting; what is no fault of the program sets a setting aside."""
        for setting in self.active():
            try:
                part(setting)
            except (ValueError, OSError) as error:
                setting.error = error


def run_setting(setting: Setting, place: Place, *, dataset: Dataset, run_jobs: RunJobs, say: Say) -> Protocol:
    """Run one setting to its end; an error is raised."""
    Scheduler([setting], place, load=lambda config: dataset, run_jobs=run_jobs, say=say).run()
    if setting.error is not None:
        raise setting.error
    assert setting.protocol is not None
    return setting.protocol


# Studies --------------------------------------------------------------------------------------------------------------


def run_studies(
    studies: Sequence[Study],
    scale: Scale,
    settings: Sequence[Setting],
    place: Place,
    *,
    command: str,
    load: Load,
    run_jobs: RunJobs,
    say: Say = lambda sentence: None,
) -> list[Manifest]:
    """Run studies to their ends, and keep a manifest of each; failed ones included.

    `LockedError` where another process runs one of the studies.
    """
    overheads: list[dict[str, Any]] = []

    def note(state: str = "running") -> list[Manifest]:
        manifests = [_manifest(study, scale, settings, overheads, command=command, state=state) for study in studies]
        for manifest in manifests:
            write_manifest(manifest, place.runs)
        return manifests

    place.runs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for study in studies:
            lock = manifest_lock(study.name, scale, place.runs)
            stack.enter_context(locked(lock, what=f"the study {study.name} at scale {scale}"))
        note()
        scheduler = Scheduler(settings, place, load=load, run_jobs=run_jobs, say=say, after_round=note)
        scheduler.run()
        if any(study.overhead for study in studies):
            say("the cost of averages: steps and updates in turn")
            for setting in scheduler.active():
                if any(study.overhead and setting.name in study.pairs for study in studies):
                    overheads.append(measure_overhead(setting.config, load(setting.config)))
        return note("done")


def _manifest(
    study: Study,
    scale: Scale,
    settings: Sequence[Setting],
    overheads: Sequence[dict[str, Any]],
    *,
    command: str,
    state: str,
) -> Manifest:
    names, arms = study.pairs_at(scale), study.arms_at(scale)
    own = [setting for setting in settings if setting.name in names]
    failed = [f"{setting.name}: {setting.error}" for setting in own if setting.error is not None]
    return Manifest(
        study=study.name,
        scale=scale,
        command=command,
        state="failed" if failed else "done" if state == "done" else "running",
        reason="; ".join(failed),
        pairs=tuple(
            Ran(
                pair=setting.name,
                title=title_of(setting.config),
                protocol=None if setting.protocol is None else setting.protocol.folder.name,
                arms={arm: setting.trained[arm] for arm in arms if arm in setting.trained},
            )
            for setting in own
        ),
        overheads=tuple(overheads) if study.overhead else (),
    )


# Variants -------------------------------------------------------------------------------------------------------------


def placeholder_choices(config: ProtocolConfig, place: Place) -> Chosen:
    """What follows if every seed chooses the first rate, and the slowest average at the end."""
    slowest, end = config.averages.names[-1], config.training.epochs
    averages, noisy_end = dict.fromkeys(CRITERIA, (slowest, end)), None
    if config.data.has_wrong_labels:
        averages, noisy_end = averages | dict.fromkeys(NOISY_CRITERIA, (slowest, end)), end
    choices = [Choice(seed, config.rates[0], "", end, averages, noisy_end) for seed in config.seed_numbers]
    tuned = tuning_jobs(config, data="")[:: len(config.rates)]
    refits = [
        refit_job(config, choice, job.config, has_batchnorm=True) for choice, job in zip(choices, tuned, strict=True)
    ]
    return Chosen(choices, [], refits, [swa_job(config, refit, place) for refit in refits] if config.swa else [])


def variant_jobs(arm: str, config: ProtocolConfig, chosen: Chosen, place: Place) -> list[Job]:
    """The runs of a variant in the order of the seeds, as `variant_config` has them.

    A rate that is held is held from the epoch chosen for the best accuracy of an average, where the refit left a
    checkpoint.
    """
    return [
        _variant_job(arm, config, choice, refit, place)
        for choice, refit in zip(chosen.choices, chosen.refits, strict=True)
    ]


def _variant_job(arm: str, config: ProtocolConfig, choice: Choice, refit: Job, place: Place) -> Job:
    if equals_refit(arm, config):
        return refit
    epoch = held_from(config, choice)
    run = variant_config(arm, config, refit.config, held_from=epoch)
    if arm == "constant":
        return Job(run, fork=folder_of(refit.config, place).fork_path(epoch))
    return Job(run)
