"""Files cut short and bits flipped, in runs that are finished and in runs that are not, every kind of file.

What is damaged is found, named, and made again or refused; nothing that was measured changes unnoticed.
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
from tests.torture.faults import LONG, TELL_THE_TIME, Faults, amounts, difference, faults, left, undisturbed

JOB = Job(config(data={"subset": 60}, training={"epochs": 3, "width": 2}), forks=(1,))
CHANGES = ("flip", "cut", "zeros", "empty")


def damage(path: Path, how: str, count: Faults) -> None:
    """Do something to a file that a disk, a network or a person could have done."""
    whole = bytearray(path.read_bytes())
    at = count.random.randrange(len(whole))
    if how == "flip":
        whole[at] ^= 1 << count.random.randrange(8)
    elif how == "zeros":
        whole[at : at + 512] = bytes(len(whole[at : at + 512]))
    path.write_bytes(whole[:at] if how == "cut" else b"" if how == "empty" else whole)


@cache
def finished() -> Path:
    folder = scratch_folder() / "finished"
    run_job(JOB, Place(runs=folder), digits()[0])
    return folder


@cache
def unfinished() -> Path:
    """A run that was stopped in its last epoch: two checkpoints, a fork, and what it had said."""
    folder, calls = scratch_folder() / "unfinished", []
    with pytest.raises(Interrupted):
        run_job(
            JOB,
            Place(runs=folder, checkpoint_seconds=0),
            digits()[0],
            should_stop=lambda: calls.append(1) or len(calls) == 5,
        )
    return folder


def the_run(folder: Path) -> RunFolder:
    [path] = [path for path in folder.iterdir() if path.is_dir()]
    return RunFolder(path)


def everything(run: RunFolder) -> str:
    """A digest of all that can be read of a run."""
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


def again(folder: Path) -> list[str]:
    """Start the same run again; what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_job(JOB, Place(runs=folder), digits()[0])
    return [str(each.message) for each in caught]


def damaged_copies(whole: Path, folder: Path, count: Faults, times: int) -> Generator[tuple[Path, Path, str]]:
    """Copies of a run with one file damaged: where the copy is, which file, and how it was done; all files in turn."""
    names = [path.relative_to(whole) for path in sorted(whole.rglob("*")) if path.is_file() and path.stat().st_size]
    for number in range(times):
        name, how = names[number % len(names)], count.random.choice(CHANGES)
        place = folder / str(number)
        shutil.copytree(whole, place)
        damage(place / name, how, count)
        count.count(faults=1)
        yield place, name, f"seed {count.seed}, {number}: {name} {how}"
        shutil.rmtree(place)
    count.count(lost=0)


@amounts("times", 24, 300)
def test_a_finished_run_is_damaged(tmp_path: Path, times: int) -> None:
    wanted, read = left(finished()), everything(the_run(finished()))
    with faults("damaged: finished runs") as count:
        for place, name, told in damaged_copies(finished(), tmp_path, count, times):
            run = the_run(place)
            try:
                said = again(place)
            except ValueError as error:  # a configuration that is not that of the run is left for its owner to see
                assert name.name == "config.json" and "config.json" in str(error), f"{told}: {error}"
                count.count(refused=1)
                continue
            if said:
                count.count(rebuilt=1)
                assert name.name in said[0], f"{told}: {said}"
                assert difference(left(place), wanted) == [], told
                continue
            try:
                assert everything(run) == read, f"{told}: read as if nothing were wrong"
                count.count(harmless=1)
            except ValueError as error:
                assert name.name in str(error), f"{told}: {error}"
                count.count(refused=1)
                assert not run.is_done(contents=True), told


@amounts("times", 12, 150)
def test_an_unfinished_run_is_damaged(tmp_path: Path, times: int) -> None:
    wanted = left(finished())
    assert {"checkpoint.pt", "checkpoint.previous.pt", "epoch-1.pt"} <= {path.name for path in unfinished().rglob("*")}
    with faults("damaged: unfinished runs") as count:
        for place, name, told in damaged_copies(unfinished(), tmp_path, count, times):
            try:
                said = again(place)
            except ValueError as error:
                assert name.name == "config.json" and "config.json" in str(error), f"{told}: {error}"
                count.count(refused=1)
            else:
                assert all(name.name in sentence for sentence in said), f"{told}: {said}"
                count.count(rebuilt=bool(said), harmless=not said)
                assert all(is_fork_gone_or_same(place, file) for file in difference(left(place), wanted)), told


def is_fork_gone_or_same(place: Path, name: str) -> bool:
    """Whether a file is a fork that was removed because it was damaged, or one of which no value has changed: a zip
    archive has dates and padding too.
    """
    fork = place / name
    return "/forks/" in name and (
        not fork.exists() or str(storage.read_state(fork)) == str(storage.read_state(finished() / name))
    )


# A whole study and its report -----------------------------------------------------------------------------------------


def seen(folder: Path) -> tuple[str, str]:
    """A digest of all that the report sees of a folder, and what it says that it left out."""
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
    return total.hexdigest(), "\n".join(f"{what}: {why}" for what, why in results.skipped)


@LONG
def test_the_report_names_what_is_damaged_and_uses_nothing_of_it(tmp_path: Path) -> None:
    study = undisturbed("study")
    wanted, copy = seen(study), tmp_path / "copy"
    read_by_it = [
        path.relative_to(study)
        for path in sorted(study.rglob("*"))
        if path.suffix in (".json", ".jsonl") and path.name not in TELL_THE_TIME - {"done.json"} and path.stat().st_size
    ]
    shutil.copytree(study, copy)
    with faults("damaged: a study, read by the report") as count:
        for number in range(500):
            name, how = count.random.choice(read_by_it), count.random.choice(CHANGES)
            whole = (copy / name).read_bytes()
            damage(copy / name, how, count)
            digest, said = seen(copy)
            is_harmless = digest == wanted[0]
            told = f"seed {count.seed}, {number}: {name} {how}: {said}"
            assert is_harmless or name.name in said or name.parent.name in said, told
            count.count(faults=1, harmless=is_harmless, named=not is_harmless)
            (copy / name).write_bytes(whole)
        assert seen(copy) == wanted
        count.count(lost=0)
