"""For docs/trust.md: its table of figures, made from docs/torture.json, which is the torture.json of a real run.

`PYTHONPATH=src:tests python -m torture.page` puts the table into the page.
"""

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->"


def table(results: dict[str, dict[str, Any]]) -> str:
    """One line for each test: what was counted, how long it took, and the seed that repeats it."""
    lines = ["| test | what was counted | seconds | seed |", "|---|---|---:|---:|"]
    for name, figures in sorted(results.items()):
        counted = {key: value for key, value in figures.items() if key not in ("seconds", "seed")}
        told = ", ".join(f"{key.replace('_', ' ')} {value:,}" for key, value in counted.items())
        lines.append(f"| {name} | {told} | {figures['seconds']:,} | {figures['seed']} |")
    return "\n".join(lines) + "\n"


def with_table(page: str, results: dict[str, dict[str, Any]]) -> str:
    """The page with the table between its two marks."""
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{table(results)}\n{END}", page, flags=re.DOTALL)


def main() -> None:
    page, results = DOCS / "trust.md", json.loads((DOCS / "torture.json").read_text())
    page.write_text(with_table(page.read_text(), results))


if __name__ == "__main__":
    main()
