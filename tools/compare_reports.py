"""Compare two reports file by file: `python tools/compare_reports.py OLD NEW` lists differences; exit code 1 if any.

Tables and claims are compared byte for byte, SVG figures without their random ids, the page by its text and the data of
its drawings, without style and scripts. PDF and PNG files are skipped: they show the same as the SVG files.
"""

import difflib
import re
import sys
from pathlib import Path

_COMPARED = (".md", ".csv", ".tex", ".svg", ".html", ".json")


def comparable(path: Path) -> str:
    """The text of a file, without the parts that may differ."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".svg":
        ids = {name: f"id{place}" for place, name in enumerate(dict.fromkeys(re.findall(r'id="([^"]+)"', text)))}
        return re.sub(r'(?<=[#"])[\w-]+(?=[")])', lambda found: ids.get(found[0], found[0]), text)
    if path.name == "index.html":
        text = re.sub(r"<style>.*?</style>|<script>.*?</script>|<meta http-equiv.*?>", "", text, flags=re.DOTALL)
    if path.name == "files.json":
        return "".join(
            line for line in text.splitlines(keepends=True) if not line.rstrip('",\n').endswith(("png", "pdf"))
        )
    return text


def differences(old: Path, new: Path) -> list[str]:
    """A short text per file that is missing, new or different."""
    files = {
        place: {path.relative_to(place).as_posix() for path in place.rglob("*") if path.suffix in _COMPARED}
        for place in (old, new)
    }
    found = [f"only in {place}: {name}" for place, other in ((old, new), (new, old)) for name in
             sorted(files[place] - files[other])]  # fmt: skip
    for name in sorted(files[old] & files[new]):
        before, after = comparable(old / name), comparable(new / name)
        if before != after:
            lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "old", "new", n=0, lineterm="")
            found.append("\n".join([f"differs: {name}", *(line[:300] for line in [*lines][2:14])]))
    return found


if __name__ == "__main__":
    found = differences(Path(sys.argv[1]), Path(sys.argv[2]))
    print("\n".join(found) or "no difference")
    sys.exit(bool(found))
