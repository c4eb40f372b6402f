"""What the README and docs/results.md show of the results: tables between marks, made from the files that are kept.

`python results/shown.py` brings the pages up to date. Standard library alone.
"""

import csv
import json
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "results" / "small"
REPEATED = "repeated"
"""Beside what is kept: some of the same studies on another machine, and what was not run at first."""
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md")
_BLOCK = re.compile(r"(<!-- made by results/shown\.py: ([\w-]+)(?: (\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)


def claims(kept: Path) -> str:
    """One line a claim: its verdict, and how many of its statistics bear it out, speak against it or leave it open."""
    lines = ["| | claim of the paper | verdict here | statistics for, against, open |", "|---:|---|---|---|"]
    for number, rows in _by_claim(kept).items():
        counted = Counter(row["verdict"] for row in rows)
        parts = [counted["reproduced"], counted["not reproduced"], counted["inconclusive"]]
        verdict = rows[0]["claim_verdict"]
        shown = f"**{verdict}**" if verdict == "reproduced" else verdict
        shown += " (repeated)" if rows[0]["from"] == REPEATED else ""
        counts = ", ".join(map(str, parts)) if any(parts) else "–"
        lines.append(f"| {number} | {rows[0]['title']} | {shown} | {counts} |")
    return "\n".join(lines)


def verdicts(kept: Path) -> str:
    """How many claims have which verdict, in a sentence."""
    counted = Counter(rows[0]["claim_verdict"] for rows in _by_claim(kept).values())
    return ", ".join(f"{count} {verdict}" for verdict, count in counted.most_common()) + "."


def runs(kept: Path) -> str:
    """What was trained, in which time, on what."""
    about = json.loads((kept / "about.json").read_text())
    lines = ["| data, network, part of the training images | runs | minutes each |", "|---|---:|---:|"]
    for stage, found in about["minutes"].items():
        spread = f"{found['least']:g} to {found['most']:g}" if found["runs"] > 1 else f"{found['most']:g}"
        lines.append(f"| {stage} | {found['runs']} | {spread} |")
    known = about["conditions"][0]
    where = f"{known['cores']} cores of an {known['cpu']}, {known['threads']} thread a run"
    with_what = f"torch {known['torch']}, Python {known['python']}, {known['platform']}"
    commands = "\n".join(f"- `{study['command']}`: {study['state']}" for study in about["studies"].values())
    return "\n".join(lines) + f"\n\n{about['runs']} runs; {where}; {with_what}.\n\n{commands}"


def primary(kept: Path) -> str:
    """The claims that were run: the deciding statistic with its interval, in how many seeds it holds, the verdict."""
    with open(kept / "claims.csv", newline="") as file:
        deciding = [row for row in csv.DictReader(file) if row["role"] in ("primary", "beyond")]
    lines = [
        "| | claim | statistic, and where it must lie | mean [95 % interval] | seeds | verdict |",
        "|---:|---|---|---|---|---|",
    ]
    for row in (row for row in deciding if row["mean"]):
        digits = 4 if 0 < max(abs(float(row[name])) for name in ("mean", "low", "high")) < 0.1 else 2
        mean, low, high = (f"{float(row[name]):.{digits}f}" for name in ("mean", "low", "high"))
        verdict = f"**{row['verdict']}**" if row["verdict"] == "reproduced" else row["verdict"]
        statistic = f"{row['statistic']}: {row['rule']}"
        seeds = f"{row['seeds_for']} of {row['n']}"
        lines.append(
            f"| {row['claim']} | {row['title']} | {statistic} | {mean} [{low}, {high}] | {seeds} | {verdict} |"
        )
    missing = ", ".join(row["claim"] for row in deciding if not row["mean"])
    return "\n".join(lines) + (f"\n\nNot run yet: {missing}." if missing else "")


BLOCKS = {"claims": claims, "verdicts": verdicts, "runs": runs, "primary": primary}


def with_blocks(page: str, kept: Path = KEPT) -> str:
    """A page with what stands between its marks made anew."""

    def made(block: re.Match[str]) -> str:
        return f"{block[1]}\n{BLOCKS[block[2]](kept.with_name(block[3]) if block[3] else kept)}\n\n{block[4]}"

    return _BLOCK.sub(made, page)


def _by_claim(kept: Path) -> dict[int, list[dict[str, str]]]:
    """The statistics of each claim; where it was not run at first, those of the repetition."""
    found, repeated = _claims_in(kept), kept.with_name(REPEATED)
    for number, rows in _claims_in(repeated).items() if repeated.exists() else ():
        if found[number][0]["claim_verdict"] == "not run" != rows[0]["claim_verdict"]:
            found[number] = rows
    return dict(sorted(found.items()))


def _claims_in(folder: Path) -> dict[int, list[dict[str, str]]]:
    found: dict[int, list[dict[str, str]]] = {}
    with open(folder / "claims.csv", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(int(row["claim"]), []).append({**row, "from": folder.name})
    return found


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_blocks(path.read_text()))
