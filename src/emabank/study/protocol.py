"""Tune, choose, refit, test: the paper's protocol over runs that are each trained once.

The choice sees what the tuning runs say of their validation images, and nothing else. May import everything of the
study but the commands.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from emabank.study.averages import columns
from emabank.study.carry_out import Job, MakeModel, folder_of, network_of
from emabank.study.comparisons import Column, Stage, pairs, tables, with_tuned_temperatures
from emabank.study.config import Keep, ProtocolConfig, RunConfig
from emabank.study.data.images import Dataset, fingerprint
from emabank.study.datasets import load_transfer_target
from emabank.study.place import Place
from emabank.study.plain import to_plain
from emabank.study.predict import features_of
from emabank.study.runs.identity import run_id
from emabank.study.runs.opened import RunFolder, write_json, write_rows
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
    config = config.completed()
    found = torch.accelerator.current_accelerator(check_available=True)
    there: Any = found.type if found is not None and found.type in ("cuda", "mps") else "cpu"
    if config.hardware.device not in ("auto", "cpu", there):
        raise ValueError(f"device is {config.hardware.device}, which torch does not find here; give auto or {there}")
    device = there if config.hardware.device == "auto" else config.hardware.device
    return replace(config, hardware=replace(config.hardware, device=device))


# The runs of each stage -----------------------------------------------------------------------------------------------


def tuning_jobs(config: ProtocolConfig, *, data: str, model: str = "") -> list[Job]:
    """One run for each seed and learning rate, on 80% of the training images; `data`, `model`: their fingerprints.

    >>> jobs = tuning_jobs(ProtocolConfig(rates=(0.1, 0.2), seeds=2), data="")
    >>> [(job.config.seed, job.config.rate) for job in jobs]
    [(0, 0.1), (0, 0.2), (1, 0.1), (1, 0.2)]
    """
    return [
        Job(
            RunConfig(
                recipe=config.recipe,
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
    config: ProtocolConfig, choice: Choice, tuned: RunConfig, *, has_batchnorm: bool, target: str = ""
) -> Job:
    """The run on all training images with what a seed chose; it keeps the weights of the chosen epochs."""
    keep = [Keep(weights=LIVE, epoch=choice.live_epoch, batchnorm="own", selected_by="accuracy")]
    for criterion, (average, epoch) in choice.averages.items():
        keep += columns(config.averages, average, epoch, criterion, has_batchnorm)
    unique = tuple({each.name: each for each in keep}.values())
    forks = (config.swa_epoch,) if config.swa else ()
    refit = replace(tuned, trained_on="100%", keep=unique, transfer=config.transfer, transfer_fingerprint=target)
    return Job(refit, forks=forks)


def swa_job(config: ProtocolConfig, refit: Job, place: Place) -> Job:
    """The run with SWA that is forked from a refit."""
    epoch = config.swa_epoch
    fork = folder_of(refit.config, place).path / "forks" / f"epoch-{epoch}.pt"
    return Job(replace(refit.config, keep=(), constant_from=epoch, swa=True), fork=fork)


# The protocol ---------------------------------------------------------------------------------------------------------


def carry_out_protocol(
    config: ProtocolConfig,
    place: Place,
    dataset: Dataset,
    carry_out: CarryOut,
    *,
    make_model: MakeModel | None = None,
    model_fingerprint: str = "",
    say: Callable[[str], None] = lambda sentence: None,
) -> Protocol:
    """Tune, choose, refit and test, then write the rows that belong to no single run, and the tables.

    `make_model` and its fingerprint are given where the network is one's own; `carry_out` must use the same.
    """
    prints = {"data": fingerprint(dataset), "model": model_fingerprint}
    jobs = tuning_jobs(config, **prints)
    target = None
    if config.transfer is not None:
        target = load_transfer_target(config.transfer, place.data, split_seed=config.data.split_seed, cache=place.cache)
        prints["transfer"] = fingerprint(target)
    check_model(make_model or network_of(jobs[0].config, dataset), dataset, target=target)

    say(f"tuning: {len(jobs)} runs on 80% of the training images")
    tuning = carry_out(jobs)
    choices, tuned, refits = _choices(config, jobs, tuning, target=prints.get("transfer", ""), say=say)
    say(f"refitting: {len(refits)} runs on all training images")
    refitted = carry_out(refits)
    _refuse_diverged(choices, refitted, "on all training images, though not on 80% of them; give lower rates")
    swa: list[RunFolder] = []
    if config.swa:
        say(f"SWA: {len(refits)} runs, forked from these after epoch {config.swa_epoch}")
        swa = carry_out([swa_job(config, refit, place) for refit in refits])
        _refuse_diverged(choices, swa, "when SWA kept the learning rate constant; use no-swa, or lower rates")

    noisy = config.data.noise > 0 or bool(dataset.train.wrong.any())
    stages = _stages(config, choices, tuned, refitted, swa, noisy=noisy)
    rows = [row for stage in stages for row in pairs(stage)] + with_tuned_temperatures(tuned, refitted)
    plain = {"config": to_plain(config), **prints}
    summary = {
        **plain,
        "choices": [{**choice._asdict(), "averages": dict(choice.averages)} for choice in choices],
        "tables": tables(stages, rows),
    }
    folder = place.runs / f"protocol-{run_id(plain)}"
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "rows.jsonl", rows)
    write_json(folder / "summary.json", summary)
    return Protocol(
        config=config,
        folder=folder,
        choices=tuple(choices),
        tuned=tuple(tuned),
        refitted=tuple(refitted),
        swa=tuple(swa),
        summary=summary,
    )


def check_model(make_model: MakeModel, dataset: Dataset, *, target: Dataset | None = None) -> None:
    """Let a new model see two images, and refuse it in a sentence if it cannot learn from this data set.

    With `target`, its features must be fit for that too. So nothing is trained in vain; random numbers are left alone.

    >>> from emabank.study.data.digits import digits_dataset
    >>> check_model(lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)), digits_dataset())
    Traceback (most recent call last):
    ValueError: the model makes [2, 3] of 2 images of digits, which has 10 classes; give one that returns logits [2, 10]
    """
    if target is not None and target.train.images.shape[1] != dataset.train.images.shape[1]:
        raise ValueError(
            f"transfer is to {target.name}, whose images have {target.train.images.shape[1]} channels, and those of "
            f"{dataset.name} have {dataset.train.images.shape[1]}; give a data set with as many channels"
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
        if target is not None:
            _tried(lambda images: features_of(model, [(images, None)]), target, device)


def _tried(part: Callable[[Tensor], object], dataset: Dataset, device: torch.device | None) -> object:
    """What a model, or a part of it, makes of two images."""
    shape = [2, *dataset.train.images.shape[1:]]
    try:
        return part(torch.zeros(shape, device=device))
    except Exception as error:  # a model of one's own may raise any
        raise ValueError(f"the model fails on images {shape} of {dataset.name}: {error}") from error


def _choices(
    config: ProtocolConfig, jobs: Sequence[Job], runs: Sequence[RunFolder], *, target: str, say: Callable[[str], None]
) -> tuple[list[Choice], list[RunFolder], list[Job]]:
    """What each seed chose, the tuning run that it was, and the refit that follows."""
    choices: list[Choice] = []
    tuned: list[RunFolder] = []
    refits: list[Job] = []
    count = len(config.rates)
    for seed in range(config.seeds):
        mine = range(seed * count, (seed + 1) * count)
        choice = choose(seed, config.rates, [runs[i] for i in mine])
        at = next(i for i in mine if runs[i].id == choice.run)
        has_batchnorm = bool(runs[at].summary()["has_batchnorm"])
        choices.append(choice)
        tuned.append(runs[at])
        refits.append(refit_job(config, choice, jobs[at].config, has_batchnorm=has_batchnorm, target=target))
        (best, epoch), (lowest, lowest_epoch) = (choice.averages[criterion] for criterion in CRITERIA)
        say(
            f"seed {seed} chose rate {choice.rate:g}; {best} at epoch {epoch} (accuracy), "
            f"{lowest} at {lowest_epoch} (loss)"
        )
    return choices, tuned, refits


def _refuse_diverged(choices: Sequence[Choice], runs: Sequence[RunFolder], when: str) -> None:
    for choice, run in zip(choices, runs, strict=True):
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
    stages = [
        Stage("80%", "val", tuned, in_tuning),
        Stage("80%", "test", tuned, in_tuning),
        Stage("100%", "test", refitted, in_refit),
    ]
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
