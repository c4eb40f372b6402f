"""Tune, choose, refit, test: the paper's protocol over runs that are each trained once.

The choice sees what the tuning runs say of their validation images, and nothing else. May import everything of the
study but the commands.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from emabank.study.averages import columns
from emabank.study.carry_out import Job, MakeModel, folder_of, network_of, transfer_targets
from emabank.study.comparisons import Column, Stage, pairs, tables, with_tuned_temperatures
from emabank.study.config import Keep, MeasuringConfig, Place, ProtocolConfig, RunConfig
from emabank.study.data.images import Dataset, fingerprint
from emabank.study.predict import features_of
from emabank.study.runs.reader import ROWS, ROWS_CHECKSUM, SUMMARY, RunFolder
from emabank.study.runs.storage import file_checksum, with_checksum, write_json
from emabank.study.runs.writer import write_rows
from emabank.study.serialize import run_id, to_dict
from emabank.study.train import LIVE, SWA

CRITERIA = {"accuracy": "acc.", "loss": "loss"}
"""What epochs and averages are chosen by, and how a column's title has it."""

CarryOut = Callable[[Sequence[Job]], list[RunFolder]]
"""Carries out runs, in this process or elsewhere, and gives their folders in the same order."""


class Choice(NamedTuple):
    """What validation chose for one seed: the learning rate, and per criterion the average and the epoch."""

    seed: int
    rate: float
    run: str
    """The id of the tuning run that had this rate."""
    live_epoch: int
    averages: Mapping[str, tuple[str, int]]


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A protocol that was carried out: what was chosen, and the runs by stage, each in the order of the seeds."""

    config: ProtocolConfig
    folder: Path
    choices: tuple[Choice, ...]
    tuned: tuple[RunFolder, ...]
    """The tuning runs with the chosen learning rates."""
    refitted: tuple[RunFolder, ...]
    swa: tuple[RunFolder, ...]
    summary: Mapping[str, Any]
    """What summary.json holds."""


def resolved(config: ProtocolConfig) -> ProtocolConfig:
    """The configuration complete, with `device` auto replaced by what is there: it is part of a run's identity.

    >>> resolved(ProtocolConfig()).hardware.device in ("cpu", "cuda", "mps")
    True
    """
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    there: Any = found.type if found is not None and found.type in ("cuda", "mps") else "cpu"
    if config.hardware.device not in ("auto", "cpu", there):
        raise ValueError(f"device is {config.hardware.device}, which torch does not find here; give auto or {there}")
    device = there if config.hardware.device == "auto" else config.hardware.device
    return replace(config, hardware=replace(config.hardware, device=device)).completed()


# The runs of each stage -----------------------------------------------------------------------------------------------


def tuning_jobs(config: ProtocolConfig, *, data: str, model: str = "") -> list[Job]:
    """One run for each seed and learning rate, on 80% of the training images; `data`, `model`: their fingerprints.

    What is measured for figures is measured of runs on all training images, and makes no other tuning runs of these.

    >>> jobs = tuning_jobs(ProtocolConfig(rates=(0.1, 0.2), seeds=2), data="")
    >>> [(job.config.seed, job.config.rate) for job in jobs]
    [(0, 0.1), (0, 0.2), (1, 0.1), (1, 0.2)]
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
        for seed in range(config.seeds)
        for rate in config.rates
    ]


def choose(seed: int, rates: Sequence[float], runs: Sequence[RunFolder]) -> Choice:
    """The choice of one seed among its tuning runs: the learning rate by the live weights' best validation accuracy
    (of equals the first), then per criterion what that run chose. It reads the runs' summaries and nothing else.
    """
    best: tuple[float, RunFolder, dict[str, Any]] | None = None
    for rate, run in zip(rates, runs, strict=True):
        summary = run.summary()
        chosen = summary.get("chosen")
        if not chosen or summary.get("diverged"):
            continue
        if best is None or chosen[LIVE]["value"] > best[2][LIVE]["value"]:
            best = rate, run, chosen
    if best is None:
        raise ValueError(
            f"with seed {seed} the training diverged at every learning rate ({', '.join(map(str, rates))}); "
            "give lower rates"
        )
    rate, run, chosen = best
    averages = {name: (chosen[name]["average"], chosen[name]["epoch"]) for name in CRITERIA}
    return Choice(seed, rate, run.id, chosen[LIVE]["epoch"], averages)


def refit_job(
    config: ProtocolConfig, choice: Choice, tuned: RunConfig, *, has_batchnorm: bool, targets: tuple[str, ...] = ()
) -> Job:
    """The run on all training images with what a seed chose; it keeps the weights of the chosen epochs."""
    keep = [Keep(weights=LIVE, epoch=choice.live_epoch, batchnorm="own", selected_by="accuracy")]
    for criterion, (average, epoch) in choice.averages.items():
        keep += columns(config.averages, average, epoch, criterion, has_batchnorm)
    unique = tuple({each.name: each for each in keep}.values())
    forks = {config.swa_epoch} if config.swa else set[int]()
    if config.data.has_wrong_labels:  # there a study goes on from the chosen epoch with the learning rate held
        forks.add(held_from(config, choice))
    refit = replace(
        tuned,
        recipe=config.recipe,
        trained_on="100%",
        keep=unique,
        transfer=config.transfer,
        transfer_fingerprints=targets,
    )
    return Job(refit, forks=tuple(sorted(forks)))


def held_from(config: ProtocolConfig, choice: Choice) -> int:
    """The epoch from which the learning rate is held: the one chosen for the best accuracy of an average, or the next
    in which the warm-up is over.
    """
    chosen = min(choice.averages["accuracy"][1], config.training.epochs - 1)
    return max(chosen, math.ceil(config.training.warmup))


def swa_job(config: ProtocolConfig, refit: Job, place: Place) -> Job:
    """The run with SWA that is forked from a refit."""
    epoch = config.swa_epoch
    fork = folder_of(refit.config, place).fork_path(epoch)
    return Job(replace(refit.config, keep=(), constant_from=epoch, swa=True), fork=fork)


# The protocol ---------------------------------------------------------------------------------------------------------


class Planned(NamedTuple):
    """A protocol before anything is trained: the tuning runs, and fingerprints of what they are measured on."""

    tuning: list[Job]
    prints: dict[str, Any]
    """Fingerprints of data, model and targets: with the configuration they are the protocol's identity."""

    @property
    def targets(self) -> tuple[str, ...]:
        return self.prints["transfer"]


class Chosen(NamedTuple):
    """A protocol after tuning: what each seed chose, in which run, and the runs that follow from it."""

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
) -> Planned:
    """The tuning runs of a protocol, once its model has been seen to fit its data and targets."""
    prints: dict[str, Any] = {"data": fingerprint(dataset), "model": model_fingerprint}
    jobs = tuning_jobs(config, **prints)
    targets = transfer_targets(config.transfer, place, split_seed=config.data.split_seed)
    check_model(make_model or network_of(jobs[0].config, dataset), dataset, targets=targets)
    return Planned(jobs, {**prints, "transfer": tuple(fingerprint(target) for target in targets)})


def choose_all(config: ProtocolConfig, place: Place, planned: Planned) -> Chosen:
    """What every seed chose, of tuning runs that are all done, and the runs that follow."""
    choices: list[Choice] = []
    tuned: list[RunFolder] = []
    refits: list[Job] = []
    count = len(config.rates)
    for seed in range(config.seeds):
        jobs = planned.tuning[seed * count : (seed + 1) * count]
        runs = [folder_of(job.config, place) for job in jobs]
        choice = choose(seed, config.rates, runs)
        at = next(i for i, run in enumerate(runs) if run.id == choice.run)
        has_batchnorm = bool(runs[at].summary()["has_batchnorm"])
        choices.append(choice)
        tuned.append(runs[at])
        refits.append(refit_job(config, choice, jobs[at].config, has_batchnorm=has_batchnorm, targets=planned.targets))
    swa = [swa_job(config, refit, place) for refit in refits] if config.swa else []
    return Chosen(choices, tuned, refits, swa)


def carry_out_protocol(
    config: ProtocolConfig,
    place: Place,
    dataset: Dataset,
    carry_out: CarryOut,
    *,
    make_model: MakeModel | None = None,
    model_fingerprint: str = "",
    stages: Sequence[str] = ("tune", "refit", "swa"),
    say: Callable[[str], None] = lambda sentence: None,
) -> Protocol:
    """Tune, choose, refit and test, then write the rows that belong to no single run, and the tables.

    `make_model` and its fingerprint are given where the network is one's own; `carry_out` must use the same. With fewer
    `stages` only the runs of these are carried out; of the others those count that are all done, and well.
    """
    planned = plan_protocol(config, place, dataset, make_model=make_model, model_fingerprint=model_fingerprint)
    say(f"tuning: {len(planned.tuning)} runs on 80% of the training images")
    carry_out(planned.tuning)
    chosen = choose_all(config, place, planned)
    for choice in chosen.choices:
        (best, epoch), (lowest, lowest_epoch) = (choice.averages[criterion] for criterion in CRITERIA)
        say(
            f"seed {choice.seed} chose rate {choice.rate:g}; {best} at epoch {epoch} (accuracy), "
            f"{lowest} at {lowest_epoch} (loss)"
        )

    def stage(name: str, jobs: list[Job], words: str) -> list[RunFolder]:
        if name in stages and jobs:
            say(words)
            return carry_out(jobs)
        runs = [folder_of(job.config, place) for job in jobs]
        return runs if all(run.is_done() and not run.summary().get("diverged") for run in runs) else []

    words = f"refitting: {len(chosen.refits)} runs on all training images"
    refitted = stage("refit", chosen.refits, words)
    _refuse_diverged(chosen.choices, refitted, "on all training images, though not on 80% of them; give lower rates")
    swa = stage("swa", chosen.swa, f"SWA: {len(chosen.swa)} runs, forked from these after epoch {config.swa_epoch}")
    _refuse_diverged(chosen.choices, swa, "when SWA kept the learning rate constant; use no-swa, or lower rates")

    noisy = config.data.noise > 0 or bool(dataset.train.wrong.any())
    measured = _stages(config, chosen.choices, chosen.tuned, refitted, swa, noisy=noisy)
    rows = [row for each in measured for row in pairs(each)]
    rows += with_tuned_temperatures(chosen.tuned, refitted) if refitted else []
    plain = {"config": to_dict(config), **planned.prints}
    summary = {
        **plain,
        "choices": [{**choice._asdict(), "averages": dict(choice.averages)} for choice in chosen.choices],
        "runs": {
            "tuning": [folder_of(job.config, place).id for job in planned.tuning],
            "refit": [run.id for run in refitted],
            "swa": [run.id for run in swa],
        },
        "has_batchnorm": bool(chosen.tuned[0].summary()["has_batchnorm"]),
        "tables": tables(measured, rows),
    }
    folder = place.runs / f"protocol-{run_id(plain)}"
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / ROWS, rows)
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


def check_model(make_model: MakeModel, dataset: Dataset, *, targets: Sequence[Dataset] = ()) -> None:
    """Let a new model see two images, and refuse it in a sentence if it cannot learn from this data set.

    Its features must be fit for the `targets` too. So nothing is trained in vain; random numbers are left alone.

    >>> from emabank.study.data.digits import digits_dataset
    >>> check_model(lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)), digits_dataset())
    Traceback (most recent call last):
    ValueError: the model makes [2, 3] of 2 images of digits, which has 10 classes; give one that returns logits [2, 10]
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
        logits = _tried(model, dataset, device)
        found = list(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        if found != [2, dataset.classes]:
            raise ValueError(
                f"the model makes {found} of 2 images of {dataset.name}, which has {dataset.classes} classes; give one "
                f"that returns logits [2, {dataset.classes}]"
            )
        for target in targets:
            _tried(lambda images: features_of(model, [(images, None)]), target, device)


def _tried(part: Callable[[Tensor], object], dataset: Dataset, device: torch.device | None) -> object:
    """What a model, or a part of it, makes of two images."""
    shape = [2, *dataset.train.images.shape[1:]]
    try:
        return part(torch.zeros(shape, device=device))
    except Exception as error:  # a model of one's own may raise any
        raise ValueError(f"the model fails on images {shape} of {dataset.name}: {error}") from error


def _refuse_diverged(choices: Sequence[Choice], runs: Sequence[RunFolder], when: str) -> None:
    for choice, run in zip(choices, runs, strict=bool(runs)):
        if run.summary().get("diverged"):
            raise ValueError(f"with seed {choice.seed} and rate {choice.rate:g} the training diverged {when}")


# Its tables -----------------------------------------------------------------------------------------------------------


def _stages(
    config: ProtocolConfig,
    choices: Sequence[Choice],
    tuned: Sequence[RunFolder],
    refitted: Sequence[RunFolder],
    swa: Sequence[RunFolder],
    *,
    noisy: bool,
) -> list[Stage]:
    """What is measured of which runs: the five columns of tuning and refit, and SWA beside them.

    The live weights are those of the best epoch in tuning and of the last in a refit. A refit shows the other as well,
    tuning only under label noise, where the two differ most.
    """
    has_batchnorm = bool(tuned[0].summary()["has_batchnorm"])
    averages = _average_columns(config, choices, has_batchnorm=has_batchnorm)
    best, last = ((f"{LIVE}-{selected_by}",) * len(choices) for selected_by in ("accuracy", "last"))
    in_tuning = [Column("SGD", best), *([Column("SGD (last)", last)] if noisy else []), *averages]
    in_refit = [Column("SGD", last), Column("SGD (best)", best), *averages]
    stages = [Stage("80%", "val", tuned, in_tuning), Stage("80%", "test", tuned, in_tuning)]
    if refitted:
        stages.append(Stage("100%", "test", refitted, in_refit))
    if swa:
        name = f"{SWA}-recomputed-last" if has_batchnorm else f"{SWA}-last"
        stages.append(Stage("100%", "test", swa, [Column("SWA", (name,) * len(swa))]))
    return stages


def _average_columns(config: ProtocolConfig, choices: Sequence[Choice], *, has_batchnorm: bool) -> list[Column]:
    chosen: list[Column] = []
    slowest: list[Column] = []
    for criterion, short in CRITERIA.items():
        kept = [columns(config.averages, *choice.averages[criterion], criterion, has_batchnorm) for choice in choices]
        chosen.append(Column(f"EMA ({short})", tuple(one.name for one, _ in kept)))
        slowest.append(Column(f"slowest ({short})", tuple(other.name for _, other in kept)))
    return [*chosen, *slowest]
