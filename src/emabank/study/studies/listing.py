"""From `emabank list` to what is shown of the studies. Imports no torch, and nothing that does, so that it is quick."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from emabank.study.config import ProtocolConfig
from emabank.study.executors.progress import duration
from emabank.study.studies.catalogue import STUDIES, Wanted, wanted
from emabank.study.studies.cost import CORES, MACHINE, NOTHING, Cost, cost_of, counted_for, usual_speed
from emabank.study.studies.scales import Scale, title_of
from emabank.study.studies.variants import example_config, runs_needed

_completed = cache(ProtocolConfig.completed)  # checked anew each time otherwise, for each study that has the pair


def list_studies(scale: Scale, console: Console | None = None) -> None:
    """Print every study: what it makes, of which pairs, how many runs that is and about how long they take.

    >>> list_studies("small", Console(quiet=True))
    """
    console = console or Console()
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in ("study", "makes", "pairs", "runs", "time"):
        table.add_column(head, justify="left" if head in ("study", "makes") else "right", no_wrap=head != "makes")
    cost = cache(_cost)  # studies share pairs, and pairs protocols
    everything = wanted(STUDIES.values(), scale)
    letters = {pair.name: chr(ord("a") + place) for place, pair in enumerate(everything)}
    for study in STUDIES.values():
        pairs = wanted([study], scale)
        marks = "".join(letters[pair.name] for pair in pairs)
        table.add_row(study.name, study.makes, marks, *_together(pairs, cost))
    table.add_row(
        "all", "all of these; runs that they share are trained once", "", *_together(everything, cost), style="bold"
    )
    console.print(table)
    for pair in everything:
        console.print(f"  {letters[pair.name]}  {title_of(pair.config)}, for {pair.name}", highlight=False)
    sizes = sorted(counted_for(_completed(pair.config)).parameters for pair in everything)
    seeds = len(everything[0].config.seed_numbers)
    console.print(
        f"Scale {scale}, {seeds} seeds, networks of {sizes[0]:,} to {sizes[-1]:,} parameters. "
        f"Time: about, for everything from nothing, on {CORES} cores like ours ({MACHINE}). "
        "`emabank run STUDY --dry-run` measures this machine, and says which runs are done.",
        highlight=False,
    )


def _together(pairs: Sequence[Wanted], cost: Callable[[ProtocolConfig, str], Cost]) -> tuple[str, str]:
    """How many runs some pairs need, and how long they take; what equal pairs both need counts once."""
    needed: dict[ProtocolConfig, Counter[str]] = {}
    for pair in pairs:
        config = _completed(pair.config)
        needed[config] = needed.get(config, Counter()) | runs_needed(config, pair.stages, pair.arms)
    total = NOTHING
    for config, kinds in needed.items():
        for kind, count in kinds.items():
            total += cost(config, kind).times(count)
    return str(sum(kinds.total() for kinds in needed.values())), duration(total.seconds / CORES)


def _cost(config: ProtocolConfig, kind: str) -> Cost:
    run = example_config(kind, config)
    return cost_of(run, usual_speed(run))
