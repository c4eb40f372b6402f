"""The named studies as data: what each produces, on which pairs of data set and network, with which extra runs.

Imports no torch, so `emabank list` starts at once.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from emabank.study.config import ProtocolConfig, did_you_mean
from emabank.study.studies.scales import CLEAN, CONSTANT, MAIN, NOISY, PERIODS, RATES, Scale, protocol_of
from emabank.study.studies.variants import runs_needed

if TYPE_CHECKING:
    from emabank.study.protocol import Protocol, RefitPlan, TuningPlan
    from emabank.study.run_job import MakeModel


@dataclass(frozen=True, kw_only=True)
class Study:
    """One named study. All but the last come from the paper."""

    name: str
    title: str
    question: str
    """`title` is the heading of its results, `question` the question that they answer."""
    makes: str
    """Its output, for `emabank list`."""
    pairs: tuple[str, ...]
    """Its pairs of data set and network, as keys of `scales.PAIRS`."""
    arms: tuple[str, ...] = ()
    """Variants to run besides the protocol: "step", "constant", "bootstrap", "bootstrap every 5", "posthoc", "every"
    (one variant per sampling period), "rates" (one variant per learning rate)."""
    stages: tuple[str, ...] = ("tune", "refit", "swa")
    """The stages of the protocol that it needs."""
    transfer: bool = False
    """Whether it evaluates features on other data sets. Protocols without such a data set are skipped."""
    overhead: bool = False
    """Whether it measures the cost of the averages."""

    def pairs_at(self, scale: Scale) -> tuple[str, ...]:
        """The pairs that it can use at a scale."""
        configs = {pair: protocol_of(pair, scale) for pair in self.pairs}
        return tuple(pair for pair, config in configs.items() if config and (config.transfer or not self.transfer))

    def arms_at(self, scale: Scale) -> tuple[str, ...]:
        """Its variants, by their names in the report."""
        several = {
            "every": tuple(f"every {period}" for period in PERIODS[scale]),
            "rates": tuple(f"tune at {rate:g}" for rate in RATES[scale]),
        }
        return tuple(name for arm in self.arms for name in several.get(arm, (arm,)))


_ALL = (
    Study(
        name="generalization",
        title="Generalization",
        question="Do averages beat the live weights on unseen images, and by how much?",
        makes="the headline table, the summary of tuning, the full tables of all pairs",
        pairs=(*CLEAN, *NOISY),
    ),
    Study(
        name="dynamics",
        title="Training dynamics",
        question="How do the live weights and the best average compare, epoch by epoch?",
        makes="accuracy through training with the learning rate, all pairs; early training enlarged",
        pairs=(*CLEAN, *NOISY),
        stages=("tune", "refit"),
    ),
    Study(
        name="batchnorm",
        title="Batch-norm statistics",
        question="Average the statistics with the weights, or recompute them: what changes, and when?",
        makes="each decay with averaged and with recomputed statistics; the sensitivity table; a heat map",
        pairs=(MAIN,),
        stages=("tune", "refit"),
    ),
    Study(
        name="label-noise",
        title="Label noise",
        question="How much do averages help with wrong labels, and how many do they memorise?",
        makes="the curve under label noise, the leaderboard, memorisation of wrong labels",
        pairs=NOISY,
        stages=("tune", "refit"),
    ),
    Study(
        name="constant-lr",
        title="Constant learning rate",
        question="With the rate held where averages peak, does training continue without overfitting?",
        makes="the learning rate held at the chosen epoch, against the cosine",
        pairs=(CONSTANT,),
        arms=("constant",),
        stages=("tune", "refit"),
    ),
    Study(
        name="consistency",
        title="Consistency",
        question="Do runs that differ only in their seed make the same predictions?",
        makes="churn and JS divergence between seeds",
        pairs=CLEAN,
        stages=("tune", "refit"),
    ),
    Study(
        name="calibration",
        title="Calibration",
        question="Is a prediction with 90% confidence right nine times in ten?",
        makes="ECE with and without temperature scaling; reliability diagrams",
        pairs=CLEAN,
        stages=("tune",),
    ),
    Study(
        name="transfer",
        title="Transfer",
        question="How well does a linear head on frozen features learn another task?",
        makes="linear evaluation of frozen features on another data set",
        pairs=("tiny-imagenet-resnet18", MAIN, "cifar10-resnet18"),
        stages=("tune", "refit"),
        transfer=True,
    ),
    Study(
        name="step-decay",
        title="Step decay",
        question="How much of the gain remains when the learning rate falls in steps?",
        makes="accuracy through training when the rate falls in steps",
        pairs=(MAIN,),
        arms=("step",),
        stages=("tune", "refit"),
    ),
    Study(
        name="bootstrap",
        title="Bootstrap",
        question="Does it help to copy the average back into training once per epoch?",
        makes="training whose weights are replaced by an average once an epoch, or every 5 steps",
        pairs=(MAIN,),
        arms=("bootstrap", "bootstrap every 5"),
        stages=("tune",),
    ),
    Study(
        name="lr-search",
        title="Learning-rate search",
        question="Is the best learning rate for the live weights also the best for the averages?",
        makes="validation accuracy by initial learning rate, table and curves",
        pairs=(MAIN, "cifar100-wrn-28-10"),
        arms=("rates",),
        stages=("tune",),
    ),
    Study(
        name="sampling-period",
        title="Sampling period",
        question="How often must an average be updated, and what does it cost?",
        makes="sampling periods at equal horizon; the decay table; time and memory of averages",
        pairs=(MAIN,),
        arms=("every",),
        stages=("tune", "refit"),
        overhead=True,
    ),
    Study(
        name="posthoc",
        title="Post-hoc averaging",
        question="Which window and stopping epoch would have been best? Found after one run, from snapshots.",
        makes="window and stopping epoch chosen after one run: a heat map, beside averages that were kept",
        pairs=(MAIN,),
        arms=("posthoc",),
        stages=("tune",),
    ),
)
STUDIES: dict[str, Study] = {study.name: study for study in _ALL}


def studies_named(name: str) -> tuple[Study, ...]:
    """The study with this name, or every study for "all"."""
    if name == "all":
        return _ALL
    if name not in STUDIES:
        close = did_you_mean(name, ("all", *STUDIES))
        raise ValueError(f"there is no study {name!r}{close}; give all, or one of {', '.join(STUDIES)}")
    return (STUDIES[name],)


@dataclass(kw_only=True)
class Setting:
    """A data set with a network, what to run on it, and its progress."""

    name: str
    config: ProtocolConfig
    stages: frozenset[str] = frozenset({"tune", "refit", "swa"})
    """The stages of the protocol to run."""
    arms: tuple[str, ...] = ()
    """The variants to run as well."""
    make_model: "MakeModel | None" = None
    model_fingerprint: str = ""
    planned: "TuningPlan | None" = None
    chosen: "RefitPlan | None" = None
    protocol: "Protocol | None" = None
    trained: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Run ids of each finished variant."""
    error: ValueError | OSError | None = None
    """The failure that stopped it; None so far."""


def settings_of(
    studies: Iterable[Study], scale: Scale, change: Callable[[ProtocolConfig], ProtocolConfig] = lambda config: config
) -> list[Setting]:
    """The settings of the studies at a scale, each once, with the stages and variants that any of the studies needs."""
    stages: dict[str, set[str]] = {}
    arms: dict[str, dict[str, None]] = {}
    for study in studies:
        for name in study.pairs_at(scale):
            stages.setdefault(name, set()).update(study.stages)
            arms.setdefault(name, {}).update(dict.fromkeys(study.arms_at(scale)))
    configs = {name: protocol_of(name, scale) for name in stages}
    return [
        Setting(name=name, config=change(config), stages=frozenset(stages[name]), arms=tuple(arms[name]))
        for name, config in configs.items()
        if config is not None
    ]


def list_studies(scale: Scale, console: Console | None = None) -> None:
    """Print a table of the studies: what each produces, on which settings, with how many runs."""
    console = console or Console()
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in ("study", "produces", "settings", "runs"):
        table.add_column(head, justify="left" if head in ("study", "produces") else "right", no_wrap=head != "produces")
    everything = settings_of(STUDIES.values(), scale)
    letters = {setting.name: chr(ord("a") + place) for place, setting in enumerate(everything)}
    for study in STUDIES.values():
        settings = settings_of([study], scale)
        marks = "".join(letters[setting.name] for setting in settings)
        table.add_row(study.name, study.makes, marks, str(_runs(settings)))
    shared = "all of these; shared runs are trained once"
    table.add_row("all", shared, "", str(_runs(everything)), style="bold")
    console.print(table)
    explained = Table.grid(padding=(0, 2))
    for setting in everything:
        paper = "" if scale == "paper" else f" (in place of the paper's {setting.name})"
        explained.add_row(f"  {letters[setting.name]}", setting.config.title + paper)
    console.print(explained, highlight=False)
    console.print(
        f"Scale {scale}, {len(everything[0].config.seed_numbers)} seeds. `emabank run STUDY --scale {scale} --dry-run` "
        "shows which runs are done, and estimates the time for the others on this machine.",
        highlight=False,
    )


def _runs(settings: Iterable[Setting]) -> int:
    """The number of runs that the settings need. Runs shared by equal protocols count once."""
    needed: dict[ProtocolConfig, Counter[str]] = {}
    for setting in settings:
        config = setting.config
        needed[config] = needed.get(config, Counter()) | runs_needed(config, setting.stages, setting.arms)
    return sum(kinds.total() for kinds in needed.values())
