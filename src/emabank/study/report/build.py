"""Writes the report: every table in three forms, every figure in two, the claims, and the page. Never imports torch."""

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from emabank import __version__
from emabank.study.report.claims.all import claims
from emabank.study.report.claims.show import claims_csv, claims_markdown
from emabank.study.report.evidence import Evidence
from emabank.study.report.figures.all import figures
from emabank.study.report.figures.draw import draw
from emabank.study.report.forms.csv import csv
from emabank.study.report.forms.latex import latex
from emabank.study.report.forms.markdown import markdown
from emabank.study.report.page.page import Provenance, page
from emabank.study.report.pairs import Scale
from emabank.study.report.panel import Figure
from emabank.study.report.paper.conflicts import CONFLICTS
from emabank.study.report.paper.items import ALL_STUDIES
from emabank.study.report.sheet import Sheet
from emabank.study.report.tables.all import sheets
from emabank.study.report.verdict import Claim
from emabank.study.report.written import write_files

PAGE = "index.html"
FORMS: dict[str, Callable[[Sheet], str]] = {".md": markdown, ".csv": csv, ".tex": latex}
KINDS: tuple[Literal["png", "svg"], ...] = ("png", "svg")
SCALES: tuple[Scale, ...] = get_args(Scale)


class Report(NamedTuple):
    """What was made."""

    page: Path
    sheets: Sequence[Sheet]
    figures: Sequence[Figure]
    claims: Sequence[Claim]


def build_report(evidence: Evidence, out: Path, *, tell: Callable[[int, int], None] = lambda done, of: None) -> Report:
    """Write everything into a folder, in place of what an earlier report wrote there.

    `tell` hears how many of how many files are written.
    """
    made, drawn, found = sheets(evidence), figures(evidence), claims(evidence)
    files: dict[str, Callable[[Path], object]] = {
        f"tables/{sheet.name}{ending}": _text(form(sheet)) for sheet in made for ending, form in FORMS.items()
    }
    files |= {"claims.md": _text(claims_markdown(found)), "claims.csv": _text(claims_csv(found))}
    files |= {
        f"figures/{figure.name}.{kind}": partial(draw, figure, file_format=kind) for figure in drawn for kind in KINDS
    }
    files[PAGE] = _text(page(evidence, made, drawn, found, provenance=_provenance()))
    write_files(out, files, tell=tell)
    return Report(out / PAGE, made, drawn, found)


def _text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text, encoding="utf-8")


def _provenance() -> Provenance:
    conflicts = tuple((conflict.about, conflict.places, conflict.sentence) for conflict in CONFLICTS)
    return Provenance(facts={"made with": f"emabank {__version__}"}, conflicts=conflicts)


def try_next(evidence: Evidence, *, runs: Path = Path("runs")) -> str:
    """A command that adds to this folder of runs: what is unfinished, then what is missing, then a larger scale.

    >>> try_next(Evidence())
    'emabank run all --scale demo'
    """
    unfinished = [study.command for study in evidence.studies if study.state != "done"]
    if unfinished:
        return unfinished[0]
    done = {scale: {study.name for study in evidence.studies if study.scale == scale} for scale in SCALES}
    begun = [scale for scale in SCALES if done[scale] and not done[scale] >= set(ALL_STUDIES)]
    larger = SCALES[1 + max((place for place, scale in enumerate(SCALES) if done[scale]), default=-1) :]
    scale = next(iter((*begun, *larger)), SCALES[0])
    place = [] if runs == Path("runs") else ["--runs", str(runs)]
    return shlex.join(["emabank", "run", "all", "--scale", scale, *place])
