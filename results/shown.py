"""Writes the tables of docs/results.md, between marks, from the packed results of the replication.

`python results/shown.py` updates the page. Needs only the standard library.
"""

import csv
import json
import re
from pathlib import Path

KEPT = Path(__file__).parent / "replication"
PAGE = Path(__file__).parents[1] / "docs" / "results.md"
_BLOCK = re.compile(r"(<!-- made by results/shown\.py: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def claims() -> str:
    """The claims with results: the deciding statistic and its interval, how many seeds agree, and the verdict."""
    with open(KEPT / "claims.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    deciding = [row for row in rows if row["role"] in ("primary", "beyond")]
    excepted = {row["claim"] for row in rows if (row["role"], row["verdict"]) == ("secondary", "not reproduced")}
    lines = [
        "| | claim | statistic, and where it must lie | mean [95 % interval] | seeds | verdict |",
        "|---:|---|---|---|---|---|",
    ]
    for row in (row for row in deciding if row["mean"]):
        digits = 4 if 0 < max(abs(float(row[name])) for name in ("mean", "low", "high")) < 0.1 else 2
        mean, low, high = (f"{float(row[name]):.{digits}f}" for name in ("mean", "low", "high"))
        verdict = row["verdict"]
        if verdict == "reproduced":
            verdict = "**reproduced**" + (", except a secondary statistic" if row["claim"] in excepted else "")
        statistic = f"{row['statistic']}: {row['rule']}"
        seeds = f"{row['seeds_for']} of {row['n']}"
        lines.append(
            f"| {row['claim']} | {row['title']} | {statistic} | {mean} [{low},\u00a0{high}] | {seeds} | {verdict} |"
        )
    missing = ", ".join(row["claim"] for row in deciding if not row["mean"])
    return "\n".join(lines) + (f"\n\nNot run: {missing}." if missing else "")


def runs() -> str:
    """The runs, their durations and the machines."""
    about = json.loads((KEPT / "about.json").read_text())
    lines = ["| data, network, part of the training images | uninterrupted runs | minutes each |", "|---|---:|---:|"]
    lines += [
        f"| {stage} | {found['runs']} | {found['least']:g} to {found['most']:g} |"
        for stage, found in about["minutes"].items()
    ]
    machines = {
        f"{known['cores']} cores of an {known['cpu']} ({known['platform']}, torch {known['torch']}, Python "
        f"{known['python']})"
        for known in about["conditions"]
    }
    return "\n".join(lines) + f"\n\n{about['runs']} runs, one thread each, on {'; '.join(sorted(machines))}."


if __name__ == "__main__":
    made = {"claims": claims, "runs": runs}
    PAGE.write_text(_BLOCK.sub(lambda block: f"{block[1]}\n{made[block[2]]()}\n\n{block[3]}", PAGE.read_text()))
