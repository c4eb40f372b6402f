"""Tune, choose, refit, test: the paper's protocol as plans for runs, each of which is trained once.

Nothing is trained here: `studies.scheduler` runs the jobs. The choice sees only what the tuning runs measured on their
validation images.
"""

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from emabank.study.averages import CRITERIA, NOISY_CRITERIA, kept_by_refit, table_stages
from emabank.study.config import MeasuringConfig, Place, ProtocolConfig, RunConfig
from emabank.study.data.images import Dataset, fingerprint
from emabank.study.data.splits import make_parts
from emabank.study.evaluate import pairwise_rows, temperature_rows
from emabank.study.predict import features_of
from emabank.study.run_job import Job, MakeModel, folder_of, network_of, transfer_targets
from emabank.study.runs.reader import PROTOCOL, ROWS, ROWS_CHECKSUM, SUMMARY, RunFolder
from emabank.study.runs.rows import Row, read_rows, rows_text
from emabank.study.runs.storage import file_checksum, with_checksum, write_json, write_text
from emabank.study.selection import NOISY_LIVE
from emabank.study.serialize import run_id, to_dict
from emabank.study.train import LIVE


class Choice(NamedTuple):
    """What validation chose for one seed: the learning rate, and per criterion the average and the epoch."""

    seed: int
    rate: float
    run: str
    """The id of the tuning run with this rate."""
    live_epoch: int
    averages: Mapping[str, tuple[str, int]]
    noisy_live_epoch: int | None = None
    """The epoch of the live weights that noisy validation labels chose; None if no label is wrong."""

    @property
    def live_epochs(self) -> dict[str, int]:
        """The chosen epoch of the live weights, by criterion."""
        noisy = {} if self.noisy_live_epoch is None else {"noisy-accuracy": self.noisy_live_epoch}
        return {"accuracy": self.live_epoch, **noisy}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A finished protocol: the choices, and the runs of each stage in the order of the seeds."""

    config: ProtocolConfig
    folder: Path
    choices: tuple[Choice, ...]
    tuned: tuple[RunFolder, ...]
    """The tuning runs with the chosen learning rates."""
    refitted: tuple[RunFolder, ...]
    swa: tuple[RunFolder, ...]
    summary: Mapping[str, Any]
    """The contents of summary.json."""


def resolve(config: ProtocolConfig) -> ProtocolConfig:
    """Complete a configuration, with the real device in place of `auto`: a run's id depends on it."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    best: Any = accelerator.type if accelerator is not None and accelerator.type in ("cuda", "mps") else "cpu"
    if config.hardware.device not in ("auto", "cpu", best):
        raise ValueError(f"device is {config.hardware.device}, which torch does not find here; give auto or {best}")
    device = best if config.hardware.device == "auto" else config.hardware.device
    return replace(config, hardware=replace(config.hardware, device=device)).completed()


# The runs of each stage -----------------------------------------------------------------------------------------------


def tuning_jobs(config: ProtocolConfig, *, data: str, model: str = "") -> list[Job]:
    """One run per seed and learning rate, on 80% of the training images; `data` and `model` are fingerprints.

    Measurements for figures are made in runs on all training images. Here they are omitted, so that they do not change
    the ids of tuning runs.
    """
    recipe = replace(config.recipe, measuring=MeasuringConfig())
    return [
        Job(
            RunConfig(
                recipe=recipe,
                rate=rate,
                seed=seed,
                trained_on="80%",
                fingerprint=data,
                model_fingerprint=model,
            )
        )
        for seed in config.seed_numbers
        for rate in config.rates
    ]


def choose(seed: int, rates: Sequence[float], runs: Sequence[RunFolder], *, labels: str = "clean") -> Choice:
    """Choose the learning rate of one seed, then take what the run with this rate chose by each criterion.

    The live weights' best validation accuracy decides; ties go to the first rate. Reads only the runs' summaries. With
    `labels="noisy"` the accuracy is that on the given validation labels, some of which are wrong.
    """
    led_by = NOISY_LIVE if labels == "noisy" else LIVE
    best: tuple[float, RunFolder, dict[str, Any]] | None = None
    for rate, run in zip(rates, runs, strict=True):
        summary = run.summary()
        chosen = summary.get("chosen")
        if not chosen or summary.get("diverged"):
            continue
        # If no label is wrong, clean and noisy labels are the same, and were measured once.
        if best is None or chosen.get(led_by, chosen[LIVE])["value"] > best[2].get(led_by, best[2][LIVE])["value"]:
            best = rate, run, chosen
    if best is None:
        raise ValueError(
            f"with seed {seed} the training diverged at every learning rate ({', '.join(map(str, rates))}); "
            "give lower rates"
        )
    rate, run, chosen = best
    criteria = [name for name in (*CRITERIA, *NOISY_CRITERIA) if name in chosen]
    averages = {name: (chosen[name]["average"], chosen[name]["epoch"]) for name in criteria}
    return Choice(seed, rate, run.id, chosen[LIVE]["epoch"], averages, chosen.get(NOISY_LIVE, {}).get("epoch"))


def refit_job(
    config: ProtocolConfig, choice: Choice, tuned: RunConfig, *, has_batchnorm: bool, targets: tuple[str, ...] = ()
) -> Job:
    """The run on all training images with what a seed chose; it keeps the weights of the chosen epochs."""
    forks = {config.swa_epoch} if config.swa else set[int]()
    if config.data.has_wrong_labels:  # the variant "constant" starts from this checkpoint
        forks.add(held_from(config, choice))
    refit = replace(
        tuned,
        recipe=config.recipe,
        trained_on="100%",
        keep=kept_by_refit(config.averages, choice.live_epochs, choice.averages, has_batchnorm=has_batchnorm),
        transfer=config.transfer,
        transfer_fingerprints=targets,
    )
    return Job(refit, forks=tuple(sorted(forks)))


def held_from(config: ProtocolConfig, choice: Choice) -> int:
    """The epoch after which the variant "constant" holds the learning rate.

    This is the one with the best validation accuracy of an average, by noisy labels if these choose the rate. It is
    never before the end of the warm-up, and never the last one.
    """
    _, epoch = choice.averages["accuracy"]
    if config.data.validation_labels == "noisy":
        _, epoch = choice.averages.get("noisy-accuracy", choice.averages["accuracy"])
    chosen = min(epoch, config.training.epochs - 1)
    return max(chosen, math.ceil(config.training.warmup))


def swa_job(config: ProtocolConfig, refit: Job, place: Place) -> Job:
    """The SWA run that forks from a refit."""
    epoch = config.swa_epoch
    fork = folder_of(refit.config, place).fork_path(epoch)
    return Job(replace(refit.config, keep=(), constant_from=epoch, swa=True), fork=fork)


# The protocol ---------------------------------------------------------------------------------------------------------


class TuningPlan(NamedTuple):
    """A protocol before anything is trained: its tuning runs, and the fingerprints of what they use."""

    tuning: list[Job]
    prints: dict[str, Any]
    """Fingerprints of data, model and transfer targets; with the configuration they identify the protocol."""


class RefitPlan(NamedTuple):
    """A protocol after tuning: what each seed chose, in which run, and the runs that follow from that."""

    choices: list[Choice]
    tuned: list[RunFolder]
    refits: list[Job]
    swa: list[Job]


def plan_protocol(
    config: ProtocolConfig,
    place: Place,
    dataset: Dataset,
    *,
    make_model: MakeModel | None = None,
    model_fingerprint: str = "",
) -> TuningPlan:
    """Plan the tuning runs of a protocol; `ValueError` if the data or the model does not fit the configuration.

    `make_model` and its fingerprint are for a user's own network.
    """
    for share in ("80%", "100%"):
        make_parts(config.data, dataset, share)  # finds an impossible subset before any run starts
    prints: dict[str, Any] = {"data": fingerprint(dataset), "model": model_fingerprint}
    jobs = tuning_jobs(config, **prints)
    targets = transfer_targets(config.transfer, place, config.data)
    check_model(make_model or network_of(jobs[0].config, dataset), dataset, targets=targets)
    return TuningPlan(jobs, {**prints, "transfer": tuple(fingerprint(target) for target in targets)})


def choose_all(config: ProtocolConfig, place: Place, planned: TuningPlan) -> RefitPlan:
    """What every seed chose, and the runs that follow; all tuning runs must be done."""
    chosen, targets = RefitPlan([], [], [], []), planned.prints["transfer"]
    for seed in config.seed_numbers:
        own = [(folder_of(job.config, place), job.config) for job in planned.tuning if job.config.seed == seed]
        choice = choose(seed, config.rates, [run for run, _ in own], labels=config.data.validation_labels)
        run, tuned = next((run, tuned) for run, tuned in own if run.id == choice.run)
        has_batchnorm = bool(run.summary()["has_batchnorm"])
        chosen.choices.append(choice)
        chosen.tuned.append(run)
        chosen.refits.append(refit_job(config, choice, tuned, has_batchnorm=has_batchnorm, targets=targets))
    chosen.swa.extend(swa_job(config, refit, place) for refit in chosen.refits if config.swa)
    return chosen


def conclude(
    config: ProtocolConfig, place: Place, planned: TuningPlan, chosen: RefitPlan, stages: Collection[str]
) -> Protocol:
    """Write the rows that belong to no single run, and the summary; all runs of `stages` must be done.

    Other stages are included if all of their runs happen to be done, and none diverged.
    """

    def runs_of(stage: str, jobs: Sequence[Job]) -> list[RunFolder]:
        runs = [folder_of(job.config, place) for job in jobs]
        is_there = stage in stages or all(run.is_done() and not run.summary().get("diverged") for run in runs)
        return runs if is_there else []

    refitted = runs_of("refit", chosen.refits)
    _check_converged(chosen.choices, refitted, "on all training images, though not on 80% of them; give lower rates")
    swa = runs_of("swa", chosen.swa)
    _check_converged(chosen.choices, swa, "when SWA kept the learning rate constant; use --no-swa, or lower rates")
    has_batchnorm = bool(chosen.tuned[0].summary()["has_batchnorm"])
    runs = {"tune": chosen.tuned, "refit": refitted, "swa": swa}
    stages_of = table_stages(
        config.averages, [choice.averages for choice in chosen.choices], has_batchnorm=has_batchnorm
    )
    rows = [row for stage in stages_of if runs[stage.variant] for row in pairwise_rows(stage, runs[stage.variant])]
    rows += temperature_rows(chosen.tuned, refitted) if refitted else []
    identity = {"config": to_dict(config), **planned.prints}
    folder = place.runs / f"{PROTOCOL}{run_id(identity)}"
    compared = [*chosen.tuned, *refitted, *swa] if len(chosen.choices) > 1 else refitted
    rows += _rows_of_restored(compared, folder)
    summary = {
        **identity,
        "choices": [{**choice._asdict(), "averages": dict(choice.averages)} for choice in chosen.choices],
        "runs": {
            "tuning": [folder_of(job.config, place).id for job in planned.tuning],
            "refit": [run.id for run in refitted],
            "swa": [run.id for run in swa],
        },
        "has_batchnorm": has_batchnorm,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / ROWS, rows_text(rows))
    checksum = {ROWS_CHECKSUM: file_checksum(folder / ROWS)}
    write_json(folder / SUMMARY, with_checksum({**summary, **checksum}))
    return Protocol(
        config=config,
        folder=folder,
        choices=tuple(chosen.choices),
        tuned=tuple(chosen.tuned),
        refitted=tuple(refitted),
        swa=tuple(swa),
        summary=summary,
    )


def _rows_of_restored(runs: Sequence[RunFolder], folder: Path) -> list[Row]:
    """Rows that an earlier `conclude` wrote about runs whose predictions are gone; warns about runs without any."""
    restored = {run.id for run in runs if run.is_rows_only()}
    if not restored:
        return []
    before = read_rows(folder / ROWS) if (folder / ROWS).exists() else []
    rows = [row for row in before if {row.run, row.other} & restored]
    missing = sorted(restored - {run for row in rows for run in (row.run, row.other)})
    if missing:
        warnings.warn(
            f"agreement between seeds and tuned temperatures are missing for {', '.join(missing)}: these runs were "
            "restored from an archive, which keeps no predictions; remove their folders to train them again",
            RuntimeWarning,
            stacklevel=2,
        )
    return rows


def _check_converged(choices: Sequence[Choice], runs: Sequence[RunFolder], when: str) -> None:
    for choice, run in zip(choices, runs, strict=bool(runs)):
        if run.summary().get("diverged"):
            raise ValueError(f"with seed {choice.seed} and rate {choice.rate:g} the training diverged {when}")


def check_model(make_model: MakeModel, dataset: Dataset, *, targets: Sequence[Dataset] = ()) -> None:
    """Try a new model on two images, and raise `ValueError` if it does not fit the data set.

    Its features must also work on the `targets`. This finds mistakes before any training. The global random state of
    the CPU does not change.
    """
    for target in targets:
        if target.train.images.shape[1] != dataset.train.images.shape[1]:
            raise ValueError(
                f"transfer is to {target.name}, whose images have {target.train.images.shape[1]} channels, and those "
                f"of {dataset.name} have {dataset.train.images.shape[1]}; give a data set with as many channels"
            )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = make_model().eval()
        device = next((parameter.device for parameter in model.parameters()), None)
        logits = _try_forward(model, dataset, device)
        shape = list(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        if shape != [2, dataset.classes]:
            raise ValueError(
                f"the model makes {shape} of 2 images of {dataset.name}, which has {dataset.classes} classes; give one "
                f"that returns logits [2, {dataset.classes}]"
            )
        for target in targets:
            _try_forward(lambda images: features_of(model, [(images, None)]), target, device)


def _try_forward(part: Callable[[Tensor], object], dataset: Dataset, device: torch.device | None) -> object:
    """The output of a model, or of a part of it, for two blank images."""
    shape = [2, *dataset.train.images.shape[1:]]
    try:
        return part(torch.zeros(shape, device=device))
    except Exception as error:  # a user's model may raise anything
        raise ValueError(f"the model fails on images {shape} of {dataset.name}: {error}") from error
