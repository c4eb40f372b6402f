"""From a folder of runs to what is kept of it here: rows, tables, figures, claims, and how it came about.

`python results/keep.py RUNS results/small` after `emabank run ...`. Small files only: no weights, no predictions, and
figures as SVG. The rows are all that the runs measured; everything else can be made from the runs again.
"""

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from emabank.study import load_results

KEPT = ("claims.csv", "claims.md", "tables/**/*.md", "figures/**/*.svg")


def keep(runs: Path, out: Path) -> None:
    """Replace the folder by what is kept of the runs; its README.md, which people write, stays."""
    rows = load_results(runs)
    about = about_runs(runs)
    with tempfile.TemporaryDirectory() as made:
        report = Path(made) / "report"
        subprocess.run([sys.executable, "-m", "emabank.study", "report", str(runs), "--out", str(report)], check=True)
        for old in (out / name for name in ("tables", "figures")):
            shutil.rmtree(old, ignore_errors=True)
        for file in sorted(file for pattern in KEPT for file in report.glob(pattern)):
            place = out / file.relative_to(report)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
    # Without a time in it, the same rows give the same file.
    with open(out / "rows.csv.gz", "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
        packed.write(rows.to_csv(index=False, float_format="%.6g").encode())
    (out / "about.json").write_text(json.dumps(about, indent=1) + "\n")


def about_runs(runs: Path) -> dict[str, Any]:
    """Commands, runs with their times, and on what they were computed."""
    studies = [json.loads(file.read_text()) for file in sorted(runs.glob("study-*.json"))]
    finished = sorted(file.parent for file in runs.glob("*/done.json"))
    minutes: dict[str, list[float]] = {}
    conditions: list[dict[str, Any]] = []
    for folder in finished:
        sessions = json.loads((folder / "environment.json").read_text())["sessions"]
        done = json.loads((folder / "done.json").read_text())["time"]
        for session in sessions:
            known = {key: value for key, value in session.items() if key != "started"}
            conditions += [known] if known not in conditions else []
        if len(sessions) == 1:  # one that was interrupted would be timed with its interruption
            minutes.setdefault(_stage(folder), []).append((_time(done) - _time(sessions[0]["started"])) / 60)
    return {
        "studies": {study["study"]: {"command": study["command"], "state": study["state"]} for study in studies},
        "runs": len(finished),
        "minutes": {
            stage: {"runs": len(found), "least": round(min(found), 1), "most": round(max(found), 1)}
            for stage, found in sorted(minutes.items())
        },
        "conditions": conditions,
    }


def _stage(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text())["config"]
    recipe = config["recipe"]
    kind = " with SWA" if config["swa"] else ""
    return f"{recipe['data']['dataset']}, {recipe['training']['network']}, on {config['trained_on']}{kind}"


def _time(said: str) -> float:
    return datetime.fromisoformat(said.replace("Z", "+00:00")).timestamp()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="the folder that `emabank run` wrote to")
    parser.add_argument("out", type=Path, help="the folder under results/")
    given = parser.parse_args()
    keep(given.runs, given.out)
