"""Runs settings through the protocol: each run once, even if several settings need it, in at most three rounds.

First all tuning runs, then refits and variants that need only tuning, then runs that start from refits. A setting
whose runs fail is set aside with its error, and the others continue. `emabank run` schedules the settings of studies;
`emabank protocol` and `run_protocol` schedule a single setting.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from emabank.study.averages import CRITERIA, NOISY_CRITERIA
from emabank.study.config import Place, ProtocolConfig
from emabank.study.data.images import Dataset
from emabank.study.executors import Outcome, raise_if_failed
from emabank.study.protocol import (
    Choice,
    Protocol,
    RefitPlan,
    choose_all,
    conclude,
    held_from,
    plan_protocol,
    refit_job,
    swa_job,
    tuning_jobs,
)
from emabank.study.run_job import Job, folder_of
from emabank.study.runs.locks import locked
from emabank.study.runs.manifest import (
    Manifest,
    SettingRuns,
    manifest_lock,
    manifest_path,
    read_manifest,
    write_manifest,
)
from emabank.study.studies.catalogue import Setting, Study
from emabank.study.studies.cost import measure_overhead
from emabank.study.studies.scales import Scale
from emabank.study.studies.variants import equals_refit, needs_refits, runs_needed, variant_config

Load = Callable[[ProtocolConfig], Dataset]
Say = Callable[[str], None]
RunJobs = Callable[..., Mapping[str, Outcome]]
"""Runs jobs and returns their outcomes by run id. `before` of all `total` jobs belong to earlier rounds."""


class Scheduler:
    """Runs settings in rounds; `after_round` is called after each."""

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
        self._expected: set[str] = set()
        """Ids of all runs if every seed chose the first rate. Only their number is used."""
        self._begun = 0

    def run(self) -> None:
        """Train all unfinished runs, and write the rows and summaries of the protocols."""
        self._for_each_active(self._plan)
        self._round("tuning", lambda setting: setting.planned.tuning if setting.planned else [])
        self._for_each_active(self._choose)
        self._round(
            "refits, and runs that need only tuning",
            lambda setting: self._jobs_after_tuning(setting, from_refits=False),
        )
        self._round("runs that start from refits", lambda setting: self._jobs_after_tuning(setting, from_refits=True))
        self._for_each_active(self._conclude)

    def active(self) -> list[Setting]:
        return [setting for setting in self.settings if setting.error is None]

    def _plan(self, setting: Setting) -> None:
        dataset = self._load(setting.config)
        setting.planned = plan_protocol(
            setting.config,
            self.place,
            dataset,
            make_model=setting.make_model,
            model_fingerprint=setting.model_fingerprint,
        )
        # Before any run starts: finds settings that cannot be trained, and counts the runs.
        expected = jobs_by_kind(setting, placeholder_choices(setting.config, self.place), self.place).values()
        later = (job for jobs in expected for job in jobs)
        self._expected |= {folder_of(job.config, self.place).id for job in (*setting.planned.tuning, *later)}

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

    def _jobs_after_tuning(self, setting: Setting, *, from_refits: bool) -> list[Job]:
        """The runs after tuning: those of the kinds that need refits, or all others."""
        assert setting.chosen is not None
        jobs = jobs_by_kind(setting, setting.chosen, self.place)
        return [job for kind, some in jobs.items() if needs_refits(kind) == from_refits for job in some]

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

        self._for_each_active(plan)
        by_id = {folder_of(job.config, self.place).id: job for some in jobs.values() for job in some}
        if not by_id:
            return
        total = max(len(self._expected), self._begun + len(by_id))
        self._say(f"{title}: {len(by_id)} of {total} runs")
        self.place.runs.mkdir(parents=True, exist_ok=True)
        outcomes = self._run_jobs(list(by_id.values()), before=self._begun, total=total)
        self._begun += len(by_id)
        self._for_each_active(
            lambda setting: raise_if_failed(
                [outcomes[folder_of(job.config, self.place).id] for job in jobs[setting.name]]
            )
        )
        self._after_round()

    def _for_each_active(self, part: Callable[[Setting], None]) -> None:
        """Do one step for every active setting. A failure that is not a bug sets its setting aside."""
        for setting in self.active():
            try:
                part(setting)
            except (ValueError, OSError) as error:
                setting.error = error


def run_setting(setting: Setting, place: Place, *, dataset: Dataset, run_jobs: RunJobs, say: Say) -> Protocol:
    """Run one setting to its end, and raise its error if it failed."""
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
    """Run studies to their ends, and write a manifest of each, also of those that fail.

    While a study runs again, its manifest keeps the earlier results of a pair until new ones are ready. The cost of
    averages is measured again only if the protocols have changed. `LockedError` if another process runs one of the
    studies.
    """
    earlier: dict[str, Manifest] = {}
    overheads: list[dict[str, Any]] = []

    def note(state: str = "running") -> list[Manifest]:
        manifests = [_manifest(study, scale, settings, overheads, command=command, state=state) for study in studies]
        for manifest in manifests:
            pairs = manifest.pairs
            if state == "running" and manifest.study in earlier:
                before = {ran.pair: ran for ran in earlier[manifest.study].pairs}
                pairs = tuple(before.get(ran.pair, ran) if ran.protocol is None else ran for ran in pairs)
            write_manifest(replace(manifest, pairs=pairs), place.runs)
        return manifests

    place.runs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for study in studies:
            lock = manifest_lock(study.name, scale, place.runs)
            stack.enter_context(locked(lock, what=f"the study {study.name} at scale {scale}"))
            with suppress(OSError, ValueError):
                earlier[study.name] = read_manifest(manifest_path(study.name, scale, place.runs))
                overheads += earlier[study.name].overheads
        note()
        scheduler = Scheduler(settings, place, load=load, run_jobs=run_jobs, say=say, after_round=note)
        scheduler.run()
        for study in studies:
            own = [setting for setting in scheduler.active() if study.overhead and setting.name in study.pairs]
            protocols = {setting.name: setting.protocol.folder.name for setting in own if setting.protocol is not None}
            known = earlier.get(study.name)
            if own and not (overheads and known and protocols == {ran.pair: ran.protocol for ran in known.pairs}):
                say("the cost of averages: steps and updates in turn")
                overheads[:] = [measure_overhead(setting.config, load(setting.config)) for setting in own]
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
    arms = study.arms_at(scale)
    own = [setting for setting in settings if setting.name in study.pairs_at(scale)]
    failed = [f"{setting.name}: {setting.error}" for setting in own if setting.error is not None]
    return Manifest(
        study=study.name,
        scale=scale,
        command=command,
        state="failed" if failed else "done" if state == "done" else "running",
        reason="; ".join(failed),
        pairs=tuple(
            SettingRuns(
                pair=setting.name,
                title=setting.config.title,
                protocol=None if setting.protocol is None else setting.protocol.folder.name,
                arms={arm: setting.trained[arm] for arm in arms if arm in setting.trained},
            )
            for setting in own
        ),
        overheads=tuple(overheads) if study.overhead else (),
    )


# Variants -------------------------------------------------------------------------------------------------------------


def placeholder_choices(config: ProtocolConfig, place: Place) -> RefitPlan:
    """The choices, and the runs after them, if every seed chose the first rate and the slowest average at the end."""
    slowest, end = config.averages.names[-1], config.training.epochs
    averages, noisy_end = dict.fromkeys(CRITERIA, (slowest, end)), None
    if config.data.has_wrong_labels:
        averages, noisy_end = averages | dict.fromkeys(NOISY_CRITERIA, (slowest, end)), end
    choices = [Choice(seed, config.rates[0], "", end, averages, noisy_end) for seed in config.seed_numbers]
    tuned = tuning_jobs(config, data="")[:: len(config.rates)]
    refits = [
        refit_job(config, choice, job.config, has_batchnorm=True) for choice, job in zip(choices, tuned, strict=True)
    ]
    return RefitPlan(choices, [], refits, [swa_job(config, refit, place) for refit in refits] if config.swa else [])


def jobs_by_kind(setting: Setting, chosen: RefitPlan, place: Place) -> dict[str, list[Job]]:
    """All runs of a setting after tuning, by kind."""
    kinds = runs_needed(setting.config, setting.stages, setting.arms)
    jobs = {"refit": chosen.refits, "swa": chosen.swa}
    jobs |= {arm: variant_jobs(arm, setting.config, chosen, place) for arm in setting.arms}
    return {kind: jobs[kind] for kind in kinds if kind != "tune"}


def variant_jobs(arm: str, config: ProtocolConfig, chosen: RefitPlan, place: Place) -> list[Job]:
    """The runs of a variant (`variant_config`), in the order of the seeds.

    "constant" starts from the checkpoint that the refit left at the epoch of `held_from`.
    """
    jobs: list[Job] = []
    for choice, refit in zip(chosen.choices, chosen.refits, strict=True):
        epoch = held_from(config, choice)
        if equals_refit(arm, config):
            jobs.append(refit)
        else:
            fork = folder_of(refit.config, place).fork_path(epoch) if arm == "constant" else None
            jobs.append(Job(variant_config(arm, config, refit.config, held_from=epoch), fork=fork))
    return jobs
