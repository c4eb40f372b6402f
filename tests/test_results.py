"""What is kept of runs: archives of all rows, tables, figures, claims, commands and conditions; no weights."""

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from emabank.study import load_results
from emabank.study.runs.archive import ARCHIVE, pack_runs, restore_runs
from emabank.study.runs.reader import RunFolder
from results.keep import keep

SETTINGS = ["epochs=4", "subset=60", "test_subset=30", "width=4", "batch=32", "rates=[0.1]"]


def emabank(*arguments: str, folder: Path) -> str:
    command = [sys.executable, "-m", "emabank.study", *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


def run_study(folder: Path) -> str:
    arguments = ("run", "batchnorm", "--seeds", "2", "--jobs", "1", "--runs", str(folder / "runs"))
    return emabank(*arguments, "--set", *SETTINGS, folder=folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    run_study(folder)
    return folder / "runs"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_all_small_files_are_kept_reproducibly(runs: Path, tmp_path: Path):
    out = tmp_path / "kept"
    (out / "tables").mkdir(parents=True)
    (out / "README.md").write_text("by hand")
    (out / "tables" / "old.md").write_text("of an earlier report")
    keep(runs, out)
    names = set(contents(out))
    assert {"README.md", "about.json", "claims.md", "claims.csv", "study-demo-batchnorm.json"} <= names
    assert "tables/old.md" not in names and (out / "README.md").read_text() == "by hand"
    assert any(name.startswith("figures/demo/batchnorm/") for name in names)
    assert {Path(name).suffix for name in names} == {".md", ".json", ".gz", ".csv", ".svg"}
    assert load_results(out).equals(load_results(runs))
    assert not any(str(tmp_path.parent.parent).encode() in content for content in contents(out).values())

    about = json.loads((out / "about.json").read_text())
    assert about["studies"]["batchnorm"]["command"].startswith("emabank run batchnorm --seeds 2 --jobs 1 --runs runs")
    assert about["runs"] == len(list(runs.glob("*/done.json"))) >= 4
    assert [set(known) for known in about["conditions"]] == [
        {"emabank", "python", "torch", "numpy", "platform", "cpu", "cores", "threads"}
    ]

    before = contents(out)
    keep(runs, out)
    assert contents(out) == before
    assert emabank("claims", str(out), folder=tmp_path) == emabank("claims", str(runs), folder=tmp_path)
    assert f"{about['runs']} done" in emabank("status", str(out), folder=tmp_path)


def test_an_archive_keeps_deleted_runs_and_skips_damaged_ones(runs: Path, tmp_path: Path):
    [archive] = pack_runs(runs, tmp_path / "all")
    first, second, *_ = sorted(path.parent.name for path in runs.glob("*/done.json"))
    for absent in (first, second):
        shutil.copytree(
            runs, tmp_path / absent, ignore=lambda _, names, absent=absent: [absent] if absent in names else []
        )
        pack_runs(tmp_path / absent, tmp_path / "merged")
    assert (tmp_path / "merged" / archive.relative_to(tmp_path / "all")).read_bytes() == archive.read_bytes()

    half = tmp_path / first / second
    (half / "rows.jsonl").write_text("")
    restore_runs(tmp_path / "merged", tmp_path / "restored")
    pack_runs(tmp_path / first, tmp_path / "without")
    restore_runs(tmp_path / "without", tmp_path / "fewer")
    missing = {path.name for path in (tmp_path / "restored").iterdir()} - {
        path.name for path in (tmp_path / "fewer").iterdir()
    }
    assert missing == {first, second}
    pack_runs(tmp_path / "restored", tmp_path / "again")
    assert (tmp_path / "again" / archive.relative_to(tmp_path / "all")).read_bytes() == archive.read_bytes()


def test_restored_runs_count_as_done_and_name_what_they_lack(runs: Path, tmp_path: Path):
    pack_runs(runs, tmp_path / "kept")
    here = tmp_path / "runs"
    assert len(restore_runs(tmp_path / "kept", here)) == len([path for path in runs.iterdir() if path.is_dir()])
    assert restore_runs(tmp_path / "kept", here) == []
    [protocol] = (path.name for path in runs.glob("protocol-*"))
    before = contents(here)
    output = run_study(tmp_path)  # trains nothing, and keeps what was measured of pairs of seeds
    assert "missing" not in output
    after = contents(here)
    assert {name for name in after if after[name] != before.get(name)} == {
        ".study-demo-batchnorm.lock",
        "study-demo-batchnorm.json",
    }
    assert b'"churn"' in after[f"{protocol}/rows.jsonl"]

    shutil.rmtree(here / protocol)
    assert "remove their folders to train them again" in run_study(tmp_path).replace("\n", " ")
    assert b'"churn"' not in (here / protocol / "rows.jsonl").read_bytes()

    run = RunFolder(next(path.parent for path in here.glob("*/done.json")))
    with pytest.raises(FileNotFoundError, match="restored from an archive.* remove the folder .* to train"):
        run.load_predictions("live-last")
    refit = next(path.parent for path in here.glob("*/config.json") if '"100%"' in path.read_text())
    shutil.rmtree(refit)
    run_study(tmp_path)  # one run is trained again, with everything
    assert not RunFolder(refit).is_rows_only() and RunFolder(refit).predictions()
    assert (refit / "rows.jsonl").read_bytes() == (runs / refit.name / "rows.jsonl").read_bytes()


@pytest.mark.parametrize("name", ["../x/rows.jsonl", "0123456789abcdef/evil.sh", "/tmp/0123456789abcdef/rows.jsonl"])
def test_an_archive_with_other_files_is_refused(tmp_path: Path, name: str):
    path = tmp_path / "kept" / "x" / ARCHIVE
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(ValueError, match="no file of a run"):
        restore_runs(tmp_path / "kept", tmp_path / "runs")
    assert list((tmp_path / "runs").iterdir()) == []


def test_rows_of_a_protocol_whose_summary_is_damaged_are_refused(runs: Path, tmp_path: Path):
    shutil.copytree(runs, tmp_path / "runs")
    [summary] = (tmp_path / "runs").glob("protocol-*/summary.json")
    summary.write_text("{}")
    with pytest.raises(ValueError, match="damaged"):
        load_results(tmp_path / "runs")
