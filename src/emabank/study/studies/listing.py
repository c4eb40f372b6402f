"""From `emabank list` to what is shown of the studies. Imports no torch, and nothing that does, so that it is quick."""

from collections import Counter
from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from emabank.study.config import ProtocolConfig
from emabank.study.studies.catalogue import STUDIES, Setting, settings_of
from emabank.study.studies.scales import Scale
from emabank.study.studies.variants import runs_needed


def list_studies(scale: Scale, console: Console | None = None) -> None:
    """Print every study: what it makes, of which settings, and how many runs that is."""
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
    """How many runs some settings need; what equal protocols both need counts once."""
    needed: dict[ProtocolConfig, Counter[str]] = {}
    for setting in settings:
        config = setting.config
        needed[config] = needed.get(config, Counter()) | runs_needed(config, setting.stages, setting.arms)
    return sum(kinds.total() for kinds in needed.values())
