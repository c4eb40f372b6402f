"""What is kept of runs: every row, the tables, figures and claims, the commands and conditions; no weights."""

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from emabank.study import load_results
from results.keep import keep

SETTINGS = ["epochs=4", "subset=60", "test_subset=30", "width=4", "batch=32", "rates=[0.1]"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    words = ["run", "batchnorm", "--seeds", "1", "--jobs", "1", "--set", *SETTINGS]
    subprocess.run(
        [sys.executable, "-m", "emabank.study", *words], cwd=folder, check=True, capture_output=True, timeout=300
    )
    return folder / "runs"


def test_everything_small_is_kept_and_nothing_else_twice_the_same(runs: Path, tmp_path: Path):
    out = tmp_path / "kept"
    (out / "tables").mkdir(parents=True)
    (out / "README.md").write_text("by hand")
    (out / "tables" / "old.md").write_text("of an earlier report")
    keep(runs, out)
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert {"README.md", "about.json", "rows.csv.gz", "claims.md", "claims.csv"} <= names
    assert "tables/old.md" not in names and (out / "README.md").read_text() == "by hand"
    assert any(name.startswith("figures/demo/batchnorm/") for name in names)
    assert {Path(name).suffix for name in names} == {".md", ".json", ".gz", ".csv", ".svg"}

    kept = pd.read_csv(io.BytesIO(gzip.decompress((out / "rows.csv.gz").read_bytes())))
    rows = load_results(runs)
    assert len(kept) == len(rows) > 0
    assert kept["value"].to_numpy() == pytest.approx(rows["value"].to_numpy(), rel=1e-5, nan_ok=True)

    about = json.loads((out / "about.json").read_text())
    assert about["studies"]["batchnorm"]["command"].startswith("emabank run batchnorm --seeds 1")
    assert about["runs"] == len(list(runs.glob("*/done.json"))) >= 2
    assert [set(known) for known in about["conditions"]] == [
        {"emabank", "python", "torch", "numpy", "platform", "cpu", "cores", "threads"}
    ]

    before = contents(out)
    keep(runs, out)
    assert contents(out) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}
