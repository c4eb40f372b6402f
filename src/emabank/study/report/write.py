"""Writes the report: every table in three formats, every figure in two, the claims and the page. Never imports torch.

Every file is written atomically, and files of an earlier report that are no longer part of it are removed.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from emabank import __version__
from emabank.atomic import remove_temporary, write_atomically
from emabank.study.report.claim_specs import make_claims
from emabank.study.report.claims import Claim
from emabank.study.report.draw import FORMATS, draw
from emabank.study.report.figure_specs import make_figures
from emabank.study.report.figures import Figure
from emabank.study.report.page import page
from emabank.study.report.render import latex, markdown, table_csv
from emabank.study.report.render_claims import claims_csv, claims_json, claims_markdown
from emabank.study.report.results import REPORT_FILES, Results
from emabank.study.report.table_specs import make_tables
from emabank.study.report.tables import Table
from emabank.study.runs.storage import read_any, write_json
from emabank.study.studies.catalogue import STUDIES
from emabank.study.studies.scales import SCALES

PAGE = "index.html"
FORMS: dict[str, Callable[[Table], str]] = {".md": markdown, ".csv": table_csv, ".tex": latex}
Write = Callable[[Path], object]


class Report(NamedTuple):
    """The finished report: the path of its page, and its contents."""

    page: Path
    tables: Sequence[Table]
    figures: Sequence[Figure]
    claims: Sequence[Claim]


def build_report(
    results: Results, out: Path, *, progress: Callable[[int, int], None] = lambda done, of: None
) -> Report:
    """Write the report into a folder, replacing an earlier report there.

    `progress` is called with the number of files written so far and the total.
    """
    tables, figures, claims = make_tables(results), make_figures(results), make_claims(results)
    files: dict[str, Write] = {
        f"tables/{table.name}{ending}": _text(form(table)) for table in tables for ending, form in FORMS.items()
    }
    forms = {"claims.md": claims_markdown, "claims.csv": claims_csv, "claims.json": claims_json}
    files |= {name: _text(form(claims)) for name, form in forms.items()}
    files |= {
        f"figures/{figure.name}.{kind}": partial(draw, figure, file_format=kind)
        for figure in figures
        for kind in FORMATS
    }
    facts = {"made with": f"emabank {__version__}"}
    files[PAGE] = _text(page(results, tables, figures, claims, facts=facts))
    write_files(out, files, progress=progress)
    return Report(out / PAGE, tables, figures, claims)


def _text(text: str) -> Write:
    return lambda path: path.write_text(text, encoding="utf-8")


def try_next(results: Results, *, runs: Path = Path("runs")) -> str:
    """The command to run next: an unfinished study, else the missing studies of a scale, else a larger scale."""
    unfinished = [study.command for study in results.studies if study.state != "done"]
    if unfinished:
        return unfinished[0]
    done = {scale: {study.study for study in results.studies if study.scale == scale} for scale in SCALES}
    begun = [scale for scale in SCALES if done[scale] and not done[scale] >= set(STUDIES)]
    larger = SCALES[1 + max((index for index, scale in enumerate(SCALES) if done[scale]), default=-1) :]
    scale = next(iter((*begun, *larger)), SCALES[0])
    folder = [] if runs == Path("runs") else ["--runs", str(runs)]
    return shlex.join(["emabank", "run", "all", "--scale", scale, *folder])


# Files ----------------------------------------------------------------------------------------------------------------


def write_files(
    folder: Path, files: Mapping[str, Write], *, progress: Callable[[int, int], None] = lambda done, of: None
) -> None:
    """Write files, by name below a folder, and remove those that an earlier call wrote and this one does not.

    Each `Write` is given a temporary path in the file's folder. `progress` is called with the number of files done and
    the total.
    """
    earlier = _listed(folder)
    write_json(folder / REPORT_FILES, sorted({*earlier, *files}))  # first, so that after a crash our files are known
    for parent in {(folder / name).parent for name in files}:
        remove_temporary(parent)
    for done, (name, write) in enumerate(files.items(), start=1):
        write_atomically(folder / name, write)
        progress(done, len(files))
    for name in sorted(earlier - set(files)):
        _remove(folder, name)
    write_json(folder / REPORT_FILES, sorted(files))


def _listed(folder: Path) -> set[str]:
    try:
        names = read_any(folder / REPORT_FILES)
    except (OSError, ValueError):
        return set()
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _remove(folder: Path, name: str) -> None:
    """Remove a file of an earlier report and the folders that this leaves empty; never outside the report's folder."""
    path = folder / name
    inside = ".." not in PurePosixPath(name).parts and path.parent.resolve().is_relative_to(folder.resolve())
    if not inside or not (path.is_file() or path.is_symlink()):
        return
    path.unlink()
    with suppress(OSError):  # not empty
        for parent in path.relative_to(folder).parents[:-1]:
            (folder / parent).rmdir()
