"""Reads a folder of runs: its settings with their columns and curves, and everything skipped, with the reason.

Columns and curves are built from the runs' rows. `read_results` skips damaged files, whatever they contain. Never
imports torch.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from emabank.study.averages import CRITERIA, NOISY_CRITERIA, RowsByName, rows_by_name, table_stages
from emabank.study.config import ProtocolConfig, RunConfig
from emabank.study.runs import reader as files
from emabank.study.runs.archive import unpacked
from emabank.study.runs.locks import is_locked
from emabank.study.runs.manifest import PREFIX, Manifest, SettingRuns, manifest_lock, read_manifest
from emabank.study.runs.reader import RunFolder
from emabank.study.runs.rows import Row, read_rows
from emabank.study.runs.storage import file_checksum, read_checked
from emabank.study.serialize import from_dict
from emabank.study.studies.scales import SCALES, Scale

LIVE, SWA = "live", "swa"
TUNE_AT, EVERY = "tune at ", "every "
"""Prefixes of variant names; a learning rate follows the first, a sampling period the second."""
TRANSFER = "transfer:"
OF_PAIRS = ("churn", "js")
"""Metrics with one value per pair of seeds."""
ON_TRAIN = ("clean_accuracy", "memorised")
_METRICS = ("accuracy", "loss", *OF_PAIRS, "ece", "ece_if_calibrated", "ece_ts", *ON_TRAIN)
"""The metrics of a column, except for transfers."""
REPORT_FILES = "files.json"
"""The report's list of the files that it wrote."""


# Results --------------------------------------------------------------------------------------------------------------


class Curve(NamedTuple):
    """Identifies a curve of a run: the weights, their batch-norm statistics, the split and the metric."""

    weights: str
    """"live", or the name of an average."""
    batchnorm: str
    """"own" for the live weights; for averages "averaged", and "recomputed" if that was measured at every epoch."""
    split: str
    """"train", "val" or "test"."""
    metric: str
    """"accuracy" or "loss". If some labels are wrong, also "clean_accuracy" and "memorised" on "train", and
    "noisy_accuracy" and "noisy_loss" on "val"."""


Predictions = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Logits and labels by split."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One finished run: its curves, and a function that loads its predictions."""

    id: str
    seed: int
    rate: float
    """The peak learning rate."""
    rates: np.ndarray
    """The learning rate at the end of each epoch."""
    curves: Mapping[Curve, np.ndarray]
    """One value per epoch, from epoch 1 on; NaN where nothing was measured."""
    posthoc: Mapping[Curve, np.ndarray] = field(default_factory=dict)
    """The same for averages synthesized after training, if the run has snapshots. Their metrics include
    "profile_error" and, for the last epoch, "weight_distance"."""
    copied_back: str | None = None
    """The average that was copied into the live weights during training (bootstrap)."""
    constant_from: int | None = None
    """The epoch after which the learning rate was held constant."""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """Versions and hardware of the run's last session."""
    predictions: Callable[[str], Predictions] = lambda name: {}
    """Loads the predictions of kept weights by the name under which the run keeps them."""
    selected: Sequence[Row] = ()
    """The rows of the kept weights."""

    @property
    def epochs(self) -> int:
        return len(self.rates)


@dataclass(frozen=True, kw_only=True)
class Column:
    """One kind of weights, such as "EMA (acc.)", with the epoch, name and metrics of each seed."""

    title: str
    """"SGD", "EMA (acc.)", "slowest (loss)", "SWA", ..."""
    trained_on: str
    split: str
    epochs: Sequence[int]
    weights: Sequence[str]
    kept: Sequence[str] = ()
    """The name under which each seed's run keeps its weights."""
    values: Mapping[str, Sequence[float | None]]
    """By metric, one value per seed (per pair of seeds for churn and js); None where it is not defined."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One data set and network at one scale, with the results of its protocol and of the studies' additional runs.

    Shares are fractions of 1 here; tables and figures show percentages.
    """

    scale: Scale
    pair: str
    """The paper's data set and network that it stands in for, such as "cifar100-resnet18"."""
    title: str
    """The data set and network that were trained, such as "digits, ResNet-8"."""
    dataset: str
    network: str
    protocol: str
    """The name of the protocol's folder."""
    averages: tuple[str, ...]
    """Names of the averages, the one with the longest memory last."""
    has_batchnorm: bool
    choices: Sequence[Mapping[str, Any]]
    """What validation chose per seed: seed, run, rate, live_epoch, averages (criterion -> (average, epoch))."""
    columns: Sequence[Column]
    variants: Mapping[str, tuple[Run, ...]]
    """Runs by variant, in the order of the seeds: "tune" and "refit" at the chosen rate, "swa", "tune at 0.4" for each
    rate tried, and those that studies add: "constant", "step", "bootstrap", "posthoc", "every 1", ..."""
    config: ProtocolConfig = field(default_factory=ProtocolConfig)

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(choice["seed"] for choice in self.choices)

    @property
    def slowest(self) -> str:
        return self.averages[-1] if self.averages else ""

    @property
    def statistics(self) -> str:
        """The batch-norm statistics with which an average is used: "recomputed" if the network has any."""
        return "recomputed" if self.has_batchnorm else "averaged"

    @property
    def validation_labels(self) -> str:
        """Which labels the validation images have if some training labels are wrong: "clean" or "noisy"; else empty."""
        return self.config.data.validation_labels if self.config.data.has_wrong_labels else ""

    @property
    def compares(self) -> bool:
        """Whether the paper's numbers compare: the data set is the paper's, in full, and so is the network."""
        data = self.config.data
        in_full = not (data.subset or data.test_subset or data.size or data.noise)
        published = data.labels in (None, "worse", "noisy")  # for CIFAR-10N, only the "worse" labels
        return in_full and published and f"{self.dataset}-{self.network}" == self.pair

    def periods(self) -> dict[int, str]:
        """The variants with another sampling period, by period, the shortest period first."""
        return dict(sorted((int(name[len(EVERY) :]), name) for name in self.variants if name.startswith(EVERY)))

    def rates(self) -> dict[float, str]:
        """The tuning variants by learning rate, the lowest rate first."""
        return dict(sorted((float(name[len(TUNE_AT) :]), name) for name in self.variants if name.startswith(TUNE_AT)))


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """The cost of averages next to one network's training step, measured on one machine in one interleaved run."""

    network: str
    parameters: int
    averages: int
    every: int
    step_seconds: tuple[float, ...]
    """A training step without averages, per repetition."""
    update_seconds: tuple[float, ...]
    """One update of all averages, per repetition."""
    bytes: int
    """Memory of all averages."""
    conditions: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        counts = (self.parameters, self.averages, self.every, self.bytes)
        if min(counts) < 1 or not all(map(math.isfinite, self.step_seconds + self.update_seconds)):
            raise ValueError("a count below 1, or a time that is not finite")  # it comes from a file

    @property
    def shares(self) -> list[float | None]:
        """The time of an update divided by the time of the steps between two updates, per repetition."""
        both = zip(self.update_seconds, self.step_seconds, strict=False)
        return [update / (self.every * step) if step > 0 else None for update, step in both]


class Skipped(NamedTuple):
    """Something in the folder that the report does not use, and why."""

    what: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Results:
    """Everything measured in a folder of runs."""

    settings: Sequence[Setting] = ()
    studies: Sequence[Manifest] = ()
    """As requested."""
    overheads: Sequence[Overhead] = ()
    skipped: Sequence[Skipped] = ()

    def of(self, *pairs: str, scale: str | None = None) -> list[Setting]:
        """The settings for these pairs of the paper at this scale; without pairs or scale, those for all."""
        return [
            setting
            for setting in self.settings
            if (not pairs or setting.pair in pairs) and scale in (None, setting.scale)
        ]

    @property
    def scales(self) -> list[Scale]:
        """The scales that have settings, the largest first."""
        return [scale for scale in reversed(SCALES) if self.of(scale=scale)]


# The folder -----------------------------------------------------------------------------------------------------------

DAMAGE = (ValueError, OSError, LookupError, TypeError, AttributeError, RecursionError)
"""The exceptions that reading a file with unexpected content can raise."""
_NO_RUNS = ("report", "slurm")
_VARIANT = re.compile(
    r"step|constant|bootstrap|posthoc|(bootstrap )?every [1-9][0-9]{0,8}|tune at [0-9]{1,4}(\.[0-9]{1,8})?"
)


def read_results(runs: str | os.PathLike[str]) -> Results:
    """Everything measured in a folder of runs or of archived runs, and what was skipped."""
    with unpacked(_folder(runs)) as folder:
        return _Reader(folder).read()


def read_studies(runs: str | os.PathLike[str]) -> tuple[tuple[Manifest, ...], tuple[Skipped, ...]]:
    """The requested studies, and the manifests that cannot be read; opens no run."""
    reader = _Reader(_folder(runs))
    return tuple(reader.manifests()), tuple(reader.skipped)


def read_setting(folder: str | os.PathLike[str]) -> Setting:
    """The setting of one protocol, by its folder, without the runs that studies add."""
    path = Path(folder)
    # A protocol on its own has no scale and stands in for no pair of the paper.
    return _Reader(path.parent).setting("demo", path.name, [SettingRuns(pair="", title=path.name)])


def state_of(study: Manifest, runs: Path) -> str:
    """The state of a study, as text."""
    if study.state == "running" and not is_locked(manifest_lock(study.study, study.scale, runs)):
        return f"interrupted; `{study.command}` resumes"
    return f"{study.state}: {study.reason}" if study.reason else study.state


def _folder(runs: str | os.PathLike[str]) -> Path:
    folder = Path(runs)
    if not folder.is_dir():
        reason = "is not a folder" if folder.exists() else "does not exist"
        raise FileNotFoundError(f"{folder} {reason}; pass the folder that `emabank run` wrote its runs to")
    return folder


class _Reader:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.skipped: list[Skipped] = []
        self._runs: dict[str, Run] = {}
        self._used: set[str] = set()

    def read(self) -> Results:
        manifests = self.manifests()
        for manifest in manifests:
            self._unfinished(manifest)
        settings = self._settings(manifests)
        overheads = [self._overhead(manifest, cost) for manifest in manifests for cost in manifest.overheads]
        self._skip_unused(all_done=all(manifest.state == "done" for manifest in manifests))
        return Results(
            settings=tuple(settings),
            studies=tuple(manifests),
            overheads=tuple(overhead for overhead in overheads if overhead is not None),
            skipped=tuple(dict.fromkeys(self.skipped)),
        )

    def manifests(self) -> list[Manifest]:
        manifests: list[Manifest] = []
        for path in sorted(self.folder.glob(f"{PREFIX}*.json")):
            self._used.add(path.name)
            try:
                manifest = read_manifest(path)
                if manifest.scale not in SCALES:
                    raise ValueError(f"its scale {manifest.scale!r} is unknown to this version of emabank")
                manifests.append(replace(manifest, reason=_without_folder(manifest.reason, self.folder)))
            except (ValueError, OSError) as error:
                self._skip(path.name, _message(error, path))
        return manifests

    def _unfinished(self, manifest: Manifest) -> None:
        what = f"study {manifest.study}, {manifest.scale}"
        if manifest.state == "failed":
            self._skip(what, f"failed: {manifest.reason}")
        elif manifest.state == "running":
            self._skip(what, state_of(manifest, self.folder))
        for ran in manifest.pairs:
            if manifest.state == "done" and ran.protocol is None:
                self._skip(f"{ran.title} ({manifest.scale})", "its protocol was not finished")

    def _settings(self, manifests: Sequence[Manifest]) -> list[Setting]:
        """One setting per pair and protocol, with the variants of all studies."""
        requested: dict[tuple[str, str, str], list[SettingRuns]] = {}
        for manifest in manifests:
            for ran in manifest.pairs:
                if ran.protocol is not None:
                    requested.setdefault((manifest.scale, ran.pair, ran.protocol), []).append(ran)
        settings: list[Setting] = []
        for (scale, _, protocol), runs_of_studies in requested.items():
            self._used.add(protocol)
            try:
                settings.append(self.setting(scale, protocol, runs_of_studies))
            except DAMAGE as error:
                self._skip(f"{runs_of_studies[-1].title} ({scale})", _message(error, self.folder))
        return settings

    def setting(self, scale: str, protocol: str, runs_of_studies: Sequence[SettingRuns]) -> Setting:
        folder = self.folder / _plain_name(protocol)
        summary, config, shared = _read_protocol(folder)
        title = runs_of_studies[-1].title
        ids = _protocol_runs(summary, config)
        for variant, runs in ((variant, runs) for ran in runs_of_studies for variant, runs in ran.arms.items()):
            if _VARIANT.fullmatch(variant):
                ids[variant] = runs
            else:
                self._skip(f"{title}: {variant}", "runs of a kind unknown to this version of emabank")
        variants = {
            variant: self._variant(f"{title}: {variant}", variant, runs, config) for variant, runs in ids.items()
        }
        has_batchnorm = bool(summary["has_batchnorm"])
        return Setting(
            scale=scale,  # type: ignore[arg-type]
            pair=runs_of_studies[-1].pair,
            title=title,
            dataset=config.data.dataset,
            network=config.training.network,
            protocol=protocol,
            averages=config.averages.names,
            has_batchnorm=has_batchnorm,
            choices=summary["choices"],
            columns=_columns(variants, shared, summary["choices"], config, has_batchnorm=has_batchnorm),
            variants={variant: runs for variant, runs in variants.items() if runs},
            config=config,
        )

    def _variant(self, what: str, variant: str, ids: Sequence[str], config: ProtocolConfig) -> tuple[Run, ...]:
        """The runs of a variant, or none if one of them cannot be used."""
        runs: list[Run] = []
        self._used.update(ids)
        for name in ids:
            try:
                run = self._run(name)
                runs.append(_renamed(run, config.averages.names) if variant.startswith(EVERY) else run)
            except ValueError as error:
                self._skip(what, f"run {name}: {error}")
                return ()
            if run.epochs < config.training.epochs:
                why = f"diverged in epoch {run.epochs} of {config.training.epochs}: the seeds have no mean curve"
                self._skip(what, f"run {name}, seed {run.seed}: {why}")
        return tuple(runs)

    def _run(self, name: str) -> Run:
        if name not in self._runs:
            self._runs[name] = read_run(RunFolder(self.folder / _plain_name(name)))
        return self._runs[name]

    def _overhead(self, manifest: Manifest, cost: Mapping[str, Any]) -> Overhead | None:
        try:
            return from_dict(Overhead, cost, where="overhead")
        except ValueError:
            why = "its cost of averages is not what this emabank writes; run the study again"
            self._skip(f"study {manifest.study}, {manifest.scale}", why)
            return None

    def _skip_unused(self, *, all_done: bool) -> None:
        """List everything in the folder that no study uses as skipped, with the reason."""
        unused: dict[str, list[str]] = {}
        for path in sorted(self.folder.iterdir()):
            ours = path.name in (*self._used, *_NO_RUNS) or (path / REPORT_FILES).is_file()
            if not ours and not path.name.startswith("."):
                unused.setdefault(_why_unused(path, all_done=all_done), []).append(path.name)
        for why, names in unused.items():
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            self._skip(", ".join(names[:3]) + more, why)

    def _skip(self, what: str, why: str) -> None:
        self.skipped.append(Skipped(_printable(what), _printable(_without_folder(why, self.folder))))


def _why_unused(path: Path, *, all_done: bool) -> str:
    try:
        if path.is_dir() and path.name.startswith(files.PROTOCOL):
            return "a protocol of no study (from `emabank protocol`, or a study with other settings)"
        if not any((path / name).exists() for name in (files.CONFIG, files.DONE, files.FAILED)):
            return "a run that is being started" if (path / files.LOG).exists() else "not a run of emabank"
        why = _why_not_done(RunFolder(path))
    except DAMAGE as error:
        why = _message(error, path)
    if why:
        return _without_folder(why, path)
    if not all_done:
        return "used by no finished study in this folder"
    return "not used by any study in this folder"


# A protocol -----------------------------------------------------------------------------------------------------------


def _read_protocol(folder: Path) -> tuple[dict[str, Any], ProtocolConfig, list[Row]]:
    """The summary and configuration of a protocol, and the rows that belong to no single run."""
    where = f"{folder.name}/{files.SUMMARY}"
    if not (folder / files.SUMMARY).is_file():
        raise ValueError(f"{where} is not there; run the study again")
    try:
        summary = read_checked(folder / files.SUMMARY)
        config = from_dict(ProtocolConfig, summary["config"], where="config")
        _check_protocol(summary, config)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        wrong = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{where} is damaged or of another emabank ({wrong}); run the study again") from error
    if files.ROWS_CHECKSUM in summary and file_checksum(folder / files.ROWS) != summary[files.ROWS_CHECKSUM]:
        raise ValueError(
            f"{folder.name}/{files.ROWS} is damaged: its content does not match its checksum; run the study again"
        )
    return summary, config, read_rows(folder / files.ROWS)


def _check_protocol(summary: Mapping[str, Any], config: ProtocolConfig) -> None:
    def is_epoch(value: object) -> bool:
        return type(value) is int and 1 <= value <= config.training.epochs  # True is 1, too

    choices, runs = summary["choices"], summary["runs"]
    if [choice["seed"] for choice in choices] != list(config.seed_numbers) or not all(
        choice["rate"] in config.rates
        and _is_text(choice["run"])
        and is_epoch(choice["live_epoch"])
        and set(CRITERIA) <= set(choice["averages"]) <= {*CRITERIA, *NOISY_CRITERIA}
        and all(name in config.averages.names and is_epoch(epoch) for name, epoch in choice["averages"].values())
        for choice in choices
    ):
        raise ValueError("see choices there")
    seeds = len(config.seed_numbers)
    counts = {"tuning": {seeds * len(config.rates)}, "refit": {0, seeds}, "swa": {0, seeds}}
    for stage, allowed in counts.items():  # those of a later stage may be missing
        if not isinstance(runs[stage], list) or len(runs[stage]) not in allowed or not all(map(_is_text, runs[stage])):
            raise ValueError("see runs there")
    if not isinstance(summary["has_batchnorm"], bool):
        raise ValueError("see has_batchnorm there")


def _protocol_runs(summary: Mapping[str, Any], config: ProtocolConfig) -> dict[str, Sequence[str]]:
    """The ids of the protocol's runs by variant. The summary lists tuning runs by seed, then by rate."""
    runs = summary["runs"]
    variants: dict[str, Sequence[str]] = {"tune": [choice["run"] for choice in summary["choices"]]}
    variants |= {f"{TUNE_AT}{rate:g}": runs["tuning"][at :: len(config.rates)] for at, rate in enumerate(config.rates)}
    return variants | {variant: runs[variant] for variant in ("refit", "swa") if runs[variant]}


# Columns --------------------------------------------------------------------------------------------------------------


def _columns(
    variants: Mapping[str, Sequence[Run]],
    shared: Sequence[Row],
    choices: Sequence[Mapping[str, Any]],
    config: ProtocolConfig,
    *,
    has_batchnorm: bool,
) -> list[Column]:
    """The columns of tuning on both splits, of the refits, and of SWA, for those variants that have runs."""
    stages = table_stages(config.averages, [choice["averages"] for choice in choices], has_batchnorm=has_batchnorm)
    columns: list[Column | None] = []
    for variant, trained_on, split, titles in stages:
        runs = variants.get(variant, ())
        rows = rows_by_name([*(row for run in runs for row in run.selected), *shared])
        ids = [run.id for run in runs]
        for title, names in titles.items() if runs else ():
            columns.append(make_column(title, trained_on, split, [*zip(ids, names, strict=True)], rows))
    return [column for column in columns if column is not None]


def make_column(
    title: str, trained_on: str, split: str, kept: Sequence[tuple[str, str]], rows: RowsByName
) -> Column | None:
    """One column; None if a seed has no accuracy row. `kept` holds a run id and the name of its weights per seed."""
    known = [row for run, name in kept if (row := rows.get((run, name, split, "accuracy", None)))]
    if len(known) < len(kept):
        return None
    values: dict[str, list[float | None]] = {}
    for metric in (*_METRICS, *sorted({key[3] for key in rows if key[3].startswith(TRANSFER)})):
        on = "train" if metric in ON_TRAIN else split
        if metric in OF_PAIRS:
            by_seed = [
                # A pair has one row, under either of its two runs.
                rows.get((one, name, on, metric, other)) or rows.get((other, other_name, on, metric, one))
                for (one, name), (other, other_name) in combinations(kept, 2)
            ]
        else:
            by_seed = [rows.get((run, name, on, metric, None)) for run, name in kept]
        if any(row is not None and row.value is not None for row in by_seed):
            values[metric] = [None if row is None else row.value for row in by_seed]
    return Column(
        title=title,
        trained_on=trained_on,
        split=split,
        epochs=[row.epoch or 0 for row in known],
        weights=[row.weights for row in known],
        kept=[name for _, name in kept],
        values=values,
    )


# A run ----------------------------------------------------------------------------------------------------------------


def read_run(folder: RunFolder) -> Run:
    """A finished run; raises `ValueError` with the reason if it cannot be used."""
    try:
        why = _why_not_done(folder)
        if why:
            raise ValueError(why)
        config = from_dict(RunConfig, folder.config(), where="config.json")
        rates, conditions, rows = _rates(folder, config), _conditions(folder), _rows(folder, config)
        return Run(
            id=folder.id,
            seed=config.seed,
            rate=config.rate,
            rates=np.array(rates, dtype=float),
            curves=_curves(rows, len(rates)),
            posthoc=_curves(folder.posthoc() if config.posthoc else (), len(rates)),
            copied_back=config.recipe.training.bootstrap,
            constant_from=config.constant_from,
            conditions=conditions,
            predictions=lambda name: _predictions(folder, name),
            selected=[row for row in rows if row.selected_by is not None],
        )
    except DAMAGE as error:
        raise ValueError(_message(error, folder.path)) from error


def _why_not_done(folder: RunFolder) -> str:
    """Why a run cannot be reported; empty if it is done and complete."""
    if not folder.path.is_dir():
        return "it is no folder" if folder.path.exists() else "it is not there"
    if folder.is_done():
        return ""
    if (folder.path / files.DONE).exists():
        return f"damaged: {folder.find_damage() or f'{files.DONE} is not what this emabank writes'}"
    state = folder.state()
    if state == "failed":
        return f"failed: {folder.failure()}"
    return "running now" if state == "running" else "interrupted before its end; the same command resumes"


def _renamed(run: Run, averages: tuple[str, ...]) -> Run:
    """The run with its averages renamed to the setting's: another sampling period means other decays and names."""
    own = {curve.weights for curve in run.curves if curve.weights.startswith("ema-")}
    if own == set(averages):
        return run
    by_memory = sorted(own, key=lambda name: float(name.removeprefix("ema-").removesuffix("%")))
    if len(own) != len(averages):
        raise ValueError(f"it has the averages {', '.join(by_memory) or 'none'} for {', '.join(averages)}")
    names = dict(zip(by_memory, averages, strict=True))
    curves = {curve._replace(weights=names.get(curve.weights, curve.weights)): v for curve, v in run.curves.items()}
    return replace(run, curves=curves)


def _rates(folder: RunFolder, config: RunConfig) -> list[float]:
    """The learning rate at the end of each epoch; a run that diverged has fewer epochs than planned."""
    history: Any = folder.history()
    rates = [epoch["rate"] for epoch in history] if isinstance(history, list) else []
    if not 0 < len(rates) <= config.recipe.training.epochs or not all(map(_is_number, rates)):
        raise ValueError(f"{files.HISTORY} is not what this emabank writes")
    return rates


def _conditions(folder: RunFolder) -> dict[str, Any]:
    conditions = dict((folder.environment() or [{}])[-1])
    if not all(_is_text(str(text)) for item in conditions.items() for text in item):
        raise ValueError(f"{files.ENVIRONMENT} is not what this emabank writes")
    return conditions


def _rows(folder: RunFolder, config: RunConfig) -> list[Row]:
    rows, test_rows = folder.rows(), folder.test_curves()
    expects_test_curves = config.trained_on == "100%" and config.recipe.measuring.test_curves
    for name, missing in ((files.ROWS, not rows), (files.TEST_CURVES, expects_test_curves and not test_rows)):
        if missing and not folder.summary().get("diverged"):
            raise ValueError(f"{name} is empty; measure that run again")
    return [*rows, *test_rows]


def _curves(rows: Iterable[Row], epochs: int) -> dict[Curve, np.ndarray]:
    curves: dict[Curve, np.ndarray] = {}
    for row in rows:
        if row.selected_by is None and row.epoch is not None and 1 <= row.epoch <= epochs:
            curve = Curve(row.weights, row.batchnorm, row.split, row.metric)
            if curve not in curves:
                curves[curve] = np.full(epochs, np.nan)
            curves[curve][row.epoch - 1] = np.nan if row.value is None else row.value
    return curves


def _predictions(folder: RunFolder, name: str) -> Predictions:
    try:
        return {split: (loaded.logits, loaded.labels) for split, loaded in folder.load_predictions(name).items()}
    except (ValueError, OSError) as error:
        raise ValueError(_message(error, folder.path.parent)) from error


# Text and values from files -------------------------------------------------------------------------------------------


def _message(error: BaseException, folder: Path) -> str:
    """The text of an error, without the paths of the folder and its parent."""
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename or 'a file'}: {error.strerror}"
    elif isinstance(error, (ValueError, OSError)):
        text = str(error)
    else:
        text = f"its files are not what this version of emabank writes ({type(error).__name__}: {error})"
    return _without_folder(_without_folder(text, folder), folder.parent)


def _without_folder(text: str, folder: Path) -> str:
    """The text with file names relative to this folder, so that no report shows where it was made."""
    for known in (folder.absolute(), folder):
        text = text if known == Path() else text.replace(f"{known}{os.sep}", "")
    return text


def _plain_name(name: str) -> str:
    """The name, if it is a plain folder name; a manifest or summary that is not ours could point anywhere."""
    if Path(name).name != name:
        raise ValueError(f"{name!r} is no name of a folder here")
    return name


def _printable(text: str) -> str:
    """The text without what UTF-8 cannot encode: file names may hold any bytes, and JSON lone surrogates."""
    return text.encode("utf-8", "replace").decode()


def _is_text(value: object) -> bool:
    """Whether it is text that can be written to a file: JSON allows lone surrogates, UTF-8 does not."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _is_number(value: object) -> bool:
    is_int = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**300  # the range of a float
    return is_int or (isinstance(value, float) and math.isfinite(value))
