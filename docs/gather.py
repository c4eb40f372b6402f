"""Gathers the site's pages for mkdocs: docs/, and the files outside of it that its pages link to.

`make docs` runs it before mkdocs, which then checks every link and anchor. Fails if a public name has no docstring or
is missing from docs/api/. Reads the source and does not import emabank.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[1]
GATHERED = ROOT / "build" / "site-source"
PAGES_OF_NAMES = ROOT / "docs" / "api"

_LINK = re.compile(r"(!?\[[^\]\n]*\])\(([^)\s#]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)


class SiteError(Exception):
    """The pages are wrong; the message says what to correct."""


def gather(root: Path, target: Path) -> list[Path]:
    """Copy the pages and the files that they link to, and return the paths of both, relative to the root.

    Files of docs/ keep their paths; others go below files/, with their paths in the repository.
    """
    shutil.rmtree(target, ignore_errors=True)
    waiting = [path.relative_to(root) for path in sorted((root / "docs").rglob("*")) if path.is_file()]
    waiting = [path for path in waiting if path.suffix not in (".py", ".pyc")]
    taken: list[Path] = []
    while waiting:
        path = waiting.pop(0)
        if path in taken:
            continue
        taken.append(path)
        place = target / _place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text, linked = _with_links_of_the_site(path, root)
            place.write_text(text)
            waiting += linked
        else:
            shutil.copyfile(root / path, place)
    return taken


def _place(path: Path) -> Path:
    return path.relative_to("docs") if path.parts[0] == "docs" else Path("files") / path


def _with_links_of_the_site(page: Path, root: Path) -> tuple[str, list[Path]]:
    """The text of a page with links for the site instead of the repository, and the files that it links to."""
    linked: list[Path] = []

    def turned(link: re.Match[str]) -> str:
        label, goal, anchor = link[1], link[2], link[3] or ""
        if "://" in goal or goal.startswith("mailto:"):
            return link[0]
        path = Path(os.path.normpath(page.parent / goal))
        if path.parts[:1] == ("..",) or not (root / path).exists():
            raise SiteError(f"{page} links to {goal}, which is not there: correct the link")
        if (root / path).is_dir():
            return label.removeprefix("!").strip("[]")  # the site has no page for a folder
        linked.append(path)
        return f"{label}({os.path.relpath(_place(path), _place(page).parent)}{anchor})"

    # A table of the report begins with a small heading; without a large one, mkdocs would make one of the file's name.
    parts = _FENCE.split(re.sub(r"\A#+ ", "# ", (root / page).read_text()))
    return "".join(part if part.startswith("```") else _LINK.sub(turned, part) for part in parts), linked


def shown_names(page: str) -> list[str]:
    """The names that a page of docs/api documents."""
    return re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)


def alone(page: str) -> list[str]:
    """The names that a page of docs/api documents without their members."""
    return re.findall(r"^::: ([\w.]+)\n    options:\n      members: false$", page, re.MULTILINE)


def undocumented(package: griffe.Module, shown: list[str], without_members: list[str]) -> Iterator[str]:
    """The names on the pages, and their members, that have no description.

    A field may be described below it, under "Args:" or "Attributes:" of its class, or by its type, if the pages have
    that. Private names are skipped, as is `__init__`, whose arguments are described with the class.
    """
    types = {name.rpartition(".")[2] for name in shown}
    for name in shown:
        found = package[name.removeprefix(f"{package.name}.")]
        target = found.final_target if isinstance(found, griffe.Alias) else found
        if name not in without_members:
            yield from _undocumented(target, types)
        elif not target.has_docstring:
            yield target.path


def _undocumented(thing: griffe.Object | griffe.Alias, types: set[str]) -> Iterator[str]:
    if not thing.has_docstring and not (thing.is_attribute and str(thing.annotation) in types):
        yield thing.path
    described = _fields_described(thing) | _described_by_bases(thing) if thing.is_class else set[str]()
    for member in thing.all_members.values() if thing.is_class or thing.is_module else ():
        # Imported names and names with an entry of their own are described there. Module constants have no entry.
        is_imported = isinstance(member, griffe.Alias) and not member.inherited
        if is_imported or member.name.startswith("_") or member.name in described:
            continue
        if not (thing.is_module and (member.is_attribute or member.is_module or member.name in types)):
            yield from _undocumented(member, types)


def _fields_described(thing: griffe.Object | griffe.Alias) -> set[str]:
    sections = thing.docstring.parse("google") if thing.docstring is not None else []
    kinds = (griffe.DocstringSectionAttributes, griffe.DocstringSectionParameters)
    return {field.name for section in sections if isinstance(section, kinds) for field in section.value}


def _described_by_bases(thing: griffe.Object | griffe.Alias) -> set[str]:
    cls = thing.final_target if isinstance(thing, griffe.Alias) else thing
    bases = cls.mro() if isinstance(cls, griffe.Class) else []
    return {name for base in bases for name, member in base.members.items() if member.has_docstring}


def missing(package: griffe.Module, shown: list[str]) -> list[str]:
    """The exported names of the package, `study` and `averaging` that no page has."""
    public = (package, package["study"], package["averaging"])
    exported = [f"{module.path}.{name}" for module in public for name in module.exports or ()]
    return [name for name in exported if name not in shown]


def main() -> int:
    """Gather the pages, and print what is wrong with them."""
    try:
        taken = gather(ROOT, GATHERED)
    except SiteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    package = griffe.load("emabank", search_paths=[ROOT / "src"], resolve_aliases=True)
    assert isinstance(package, griffe.Module)
    version = str(package["__version__"].value).strip("'\"")
    with open(GATHERED / "index.md", "a") as start:
        start.write(f"\n*Version {version}*\n")
    pages = [page.read_text() for page in sorted(PAGES_OF_NAMES.glob("*.md"))]
    shown, without_members = ([name for page in pages for name in names(page)] for names in (shown_names, alone))
    faults = [f"{name} has no docstring: describe it" for name in undocumented(package, shown, without_members)]
    faults += [f"{name} is public and not on a page of docs/api" for name in missing(package, shown)]
    print("\n".join(f"error: {fault}" for fault in faults), file=sys.stderr)
    print(f"{len(taken)} files gathered, {len(shown)} names shown")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
