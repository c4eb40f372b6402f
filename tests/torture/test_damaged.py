"""Every kind of file of finished and unfinished runs, cut short or with flipped bits.

Damage is detected, named, and repaired or refused; no result changes silently.
"""

import hashlib
import shutil
import warnings
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest

from emabank.study.config import Place
from emabank.study.report.results import read_results
from emabank.study.run_job import Job, run_job
from emabank.study.runs import storage
from emabank.study.runs.archive import load_results
from emabank.study.runs.reader import RunFolder
from emabank.study.train import Interrupted
from tests.study.small_runs import config, digits, one_thread  # noqa: F401
from tests.torture.averages import scratch_folder
from tests.torture.faults import LONG, TIME_DEPENDENT, Faults, amounts, difference, faults, files_in, undisturbed

JOB = Job(config(data={"subset": 60}, training={"epochs": 3, "width": 2}), forks=(1,))
CHANGES = ("flip", "cut", "zeros", "empty")


def damage(path: Path, change: str, count: Faults) -> None:
    """Damage a file as a disk, a network or a person could."""
    whole = bytearray(path.read_bytes())
    place = count.random.randrange(len(whole))
    if change == "flip":
        whole[place] ^= 1 << count.random.randrange(8)
    elif change == "zeros":
        whole[place : place + 512] = bytes(len(whole[place : place + 512]))
    path.write_bytes(whole[:place] if change == "cut" else b"" if change == "empty" else whole)


@cache
def finished() -> Path:
    folder = scratch_folder() / "finished"
    run_job(JOB, Place(runs=folder), digits()[0])
    return folder


@cache
def unfinished() -> Path:
    """A run that was stopped in its last epoch, with two checkpoints and a fork."""
    folder, calls = scratch_folder() / "unfinished", []
    with pytest.raises(Interrupted):
        run_job(
            JOB,
            Place(runs=folder, checkpoint_seconds=0),
            digits()[0],
            should_stop=lambda: calls.append(1) or len(calls) == 5,
        )
    return folder


def run_in(folder: Path) -> RunFolder:
    [path] = [path for path in folder.iterdir() if path.is_dir()]
    return RunFolder(path)


def digest_of(run: RunFolder) -> str:
    """A digest of all results of a run."""
    total = hashlib.sha256(repr((run.config(), run.history(), run.summary(), run.rows(), run.test_curves())).encode())
    for name in run.snapshots():
        tensors, notes = run.load_snapshot(name)
        total.update(repr((name, notes, sorted(tensors))).encode())
        for key in sorted(tensors):
            total.update(tensors[key].numpy().tobytes())
    for name in run.predictions():
        for part, found in run.load_predictions(name).items():
            total.update(repr((name, part)).encode() + found.logits.tobytes() + found.labels.tobytes())
    load_results(run.path)
    return total.hexdigest()


def resume(folder: Path) -> list[str]:
    """Start the same run again; returns its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_job(JOB, Place(runs=folder), digits()[0])
    return [str(warning.message) for warning in caught]


def damaged_copies(whole: Path, folder: Path, count: Faults, times: int) -> Generator[tuple[Path, Path, str]]:
    """Copies of a run with one damaged file, each file in turn: the folder, the file, a description."""
    names = [path.relative_to(whole) for path in sorted(whole.rglob("*")) if path.is_file() and path.stat().st_size]
    for number in range(times):
        name, change = names[number % len(names)], count.random.choice(CHANGES)
        place = folder / str(number)
        shutil.copytree(whole, place)
        damage(place / name, change, count)
        count.count(faults=1)
        yield place, name, f"seed {count.seed}, {number}: {name} {change}"
        shutil.rmtree(place)
    count.count(lost=0)


@amounts("times", 24, 300)
def test_damage_to_a_finished_run_is_repaired_or_refused(tmp_path: Path, times: int) -> None:
    wanted, digest = files_in(finished()), digest_of(run_in(finished()))
    with faults("damaged: finished runs") as count:
        for place, name, case in damaged_copies(finished(), tmp_path, count, times):
            run = run_in(place)
            try:
                messages = resume(place)
            except ValueError as error:  # a wrong configuration is kept for the user to see
                assert name.name == "config.json" and "config.json" in str(error), f"{case}: {error}"
                count.count(refused=1)
                continue
            if messages:
                count.count(rebuilt=1)
                assert name.name in messages[0], f"{case}: {messages}"
                assert difference(files_in(place), wanted) == [], case
                continue
            try:
                assert digest_of(run) == digest, f"{case}: damage was not detected"
                count.count(harmless=1)
            except ValueError as error:
                assert name.name in str(error), f"{case}: {error}"
                count.count(refused=1)
                assert not run.is_done(contents=True), case


@amounts("times", 12, 150)
def test_damage_to_an_unfinished_run_is_repaired_or_refused(tmp_path: Path, times: int) -> None:
    wanted = files_in(finished())
    assert {"checkpoint.pt", "checkpoint.previous.pt", "epoch-1.pt"} <= {path.name for path in unfinished().rglob("*")}
    with faults("damaged: unfinished runs") as count:
        for place, name, case in damaged_copies(unfinished(), tmp_path, count, times):
            try:
                messages = resume(place)
            except ValueError as error:
                assert name.name == "config.json" and "config.json" in str(error), f"{case}: {error}"
                count.count(refused=1)
            else:
                assert all(name.name in message for message in messages), f"{case}: {messages}"
                count.count(rebuilt=bool(messages), harmless=not messages)
                assert all(is_fork_gone_or_same(place, file) for file in difference(files_in(place), wanted)), case


def is_fork_gone_or_same(place: Path, name: str) -> bool:
    """Whether a file is a fork that was removed, or one with unchanged values: a zip archive has dates and padding."""
    fork = place / name
    return "/forks/" in name and (
        not fork.exists() or str(storage.read_state(fork)) == str(storage.read_state(finished() / name))
    )


# A whole study and its report -----------------------------------------------------------------------------------------


def report_digest(folder: Path) -> tuple[str, str]:
    """A digest of all that the report reads from a folder, and the files that it skips."""
    results = read_results(folder)
    total = hashlib.sha256()
    for setting in results.settings:
        total.update(repr((setting.scale, setting.pair, setting.choices, setting.columns, setting.config)).encode())
        for variant, runs in sorted(setting.variants.items()):
            for run in runs:
                total.update(repr((variant, run.id, run.seed, run.rate, run.rates.tolist())).encode())
                for curve in sorted(run.curves, key=repr):
                    total.update(repr(curve).encode() + run.curves[curve].tobytes())
    total.update(repr(results.studies).encode())
    return total.hexdigest(), "\n".join(f"{name}: {reason}" for name, reason in results.skipped)


@LONG
def test_the_report_names_damaged_files_and_skips_them(tmp_path: Path) -> None:
    study = undisturbed("study")
    wanted, copy = report_digest(study), tmp_path / "copy"
    files = [
        path.relative_to(study)
        for path in sorted(study.rglob("*"))
        if path.suffix in (".json", ".jsonl")
        and path.name not in TIME_DEPENDENT - {"done.json"}
        and path.stat().st_size
    ]
    shutil.copytree(study, copy)
    with faults("damaged: a study, read by the report") as count:
        for number in range(500):
            name, change = count.random.choice(files), count.random.choice(CHANGES)
            whole = (copy / name).read_bytes()
            damage(copy / name, change, count)
            digest, skipped = report_digest(copy)
            is_harmless = digest == wanted[0]
            case = f"seed {count.seed}, {number}: {name} {change}: {skipped}"
            assert is_harmless or name.name in skipped or name.parent.name in skipped, case
            count.count(faults=1, harmless=is_harmless, named=not is_harmless)
            (copy / name).write_bytes(whole)
        assert report_digest(copy) == wanted
        count.count(lost=0)
