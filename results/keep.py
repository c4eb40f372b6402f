"""Pack the results of a folder of runs into small files, and restore runs from them.

`python results/keep.py RUNS results/replication` packs the finished runs (rows, histories and conditions, one archive
per data set and network), and makes claims, tables, figures and about.json from all packed runs. Repeat it as often as
you like while a study runs: packed runs that are no longer in RUNS are kept.

`python results/keep.py --restore results/replication RUNS` restores the packed runs into RUNS, where `emabank run`
resumes. Weights and predictions are not packed. A restored run is not trained again, but agreement between seeds can be
measured only for runs with predictions; remove a run's folder to train it again.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from emabank.study.runs.archive import pack_runs, restore_runs
from emabank.study.runs.reader import RunFolder

KEPT = ("claims.csv", "claims.md", "tables/**/*.md", "figures/**/*.svg")


def keep(runs: Path, out: Path) -> None:
    """Update the folder from the runs. Its README.md is written by hand and stays."""
    pack_runs(runs, out)
    with tempfile.TemporaryDirectory() as folder:
        every, report = Path(folder, "runs"), Path(folder, "report")
        every.mkdir()
        for path in runs.iterdir():  # linked first: unlike packed runs, these have predictions
            if (path / "summary.json").exists() or RunFolder(path).is_done():
                (every / path.name).symlink_to(path.absolute())
        restore_runs(out, every)
        subprocess.run([sys.executable, "-m", "emabank.study", "report", str(every), "--out", str(report)], check=True)
        for file in [*out.glob("tables/**/*.md"), *out.glob("figures/**/*.svg")]:
            if file.name != "reliability.svg":  # needs predictions, which runs from another machine lack
                file.unlink()
        for file in sorted(file for pattern in KEPT for file in report.glob(pattern)):
            target = out / file.relative_to(report)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        (out / "about.json").write_text(json.dumps(about_runs(every), indent=1) + "\n")


def about_runs(runs: Path) -> dict[str, Any]:
    """The commands, the number and durations of the runs, and the machines that they ran on."""
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
        if len(sessions) == 1:  # the time of an interrupted run would include the interruption
            minutes.setdefault(_stage(folder), []).append((_time(done) - _time(sessions[0]["started"])) / 60)
    return {
        "studies": {study["study"]: {"command": study["command"], "state": study["state"]} for study in studies},
        "runs": len(finished),
        "minutes": {
            stage: {"runs": len(times), "least": round(min(times), 1), "most": round(max(times), 1)}
            for stage, times in sorted(minutes.items())
        },
        "conditions": conditions,
    }


def _stage(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text())["config"]
    recipe = config["recipe"]
    kind = " with SWA" if config["swa"] else ""
    return f"{recipe['data']['dataset']}, {recipe['training']['network']}, on {config['trained_on']}{kind}"


def _time(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "source", type=Path, help="the folder that `emabank run` wrote to; with --restore, one of results/"
    )
    parser.add_argument("target", type=Path, help="the folder under results/; with --restore, a folder of runs")
    parser.add_argument("--restore", action="store_true", help="put the packed runs into a folder of runs")
    arguments = parser.parse_args()
    if arguments.restore:
        print(f"{len(restore_runs(arguments.source, arguments.target))} runs and protocols restored")
    else:
        keep(arguments.source, arguments.target)
