"""Files cut short and bits flipped, in runs that are finished and in runs that are not, every kind of file.

What is damaged is found, named, and made again or refused; nothing that was measured changes unnoticed.
"""

import hashlib
import shutil
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

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
from tests.torture.faults import LONG, TELL_THE_TIME, Faults, difference, faults, left, undisturbed

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


def torture_finished(folder: Path, count: Faults, *, times: int) -> None:
    wanted, read = left(finished()), everything(the_run(finished()))
    names = [path.relative_to(finished()) for path in sorted(finished().rglob("*")) if path.is_file()]
    for number in range(times):
        name, how = names[number % len(names)], count.random.choice(CHANGES)
        place = folder / str(number)
        shutil.copytree(finished(), place)
        if not (place / name).stat().st_size:
            continue
        damage(place / name, how, count)
        told = f"seed {count.seed}, {number}: {name} {how}"
        count.count(faults=1)
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
        else:
            try:
                assert everything(run) == read, f"{told}: read as if nothing were wrong"
                count.count(harmless=1)
            except ValueError as error:
                assert name.name in str(error), f"{told}: {error}"
                count.count(refused=1)
                assert not run.is_done(contents=True), told
        shutil.rmtree(place)
    count.count(lost=0)


def torture_unfinished(folder: Path, count: Faults, *, times: int) -> None:
    wanted = left(finished())
    names = [path.relative_to(unfinished()) for path in sorted(unfinished().rglob("*")) if path.is_file()]
    assert {"checkpoint.pt", "checkpoint.previous.pt", "epoch-1.pt", "config.json"} <= {name.name for name in names}
    for number in range(times):
        name, how = names[number % len(names)], count.random.choice(CHANGES)
        place = folder / str(number)
        shutil.copytree(unfinished(), place)
        if not (place / name).stat().st_size:
            continue
        damage(place / name, how, count)
        told = f"seed {count.seed}, {number}: {name} {how}"
        count.count(faults=1)
        try:
            said = again(place)
        except ValueError as error:
            assert name.name == "config.json" and "config.json" in str(error), f"{told}: {error}"
            count.count(refused=1)
        else:
            assert all(name.name in each for each in said), f"{told}: {said}"
            count.count(rebuilt=bool(said), harmless=not said)
            assert all(is_fork_gone_or_same(place, each) for each in difference(left(place), wanted)), told
        shutil.rmtree(place)
    count.count(lost=0)


def is_fork_gone_or_same(place: Path, name: str) -> bool:
    """Whether a file is a fork that was removed because it was damaged, or one of which no value has changed: a zip
    archive has dates and padding too.
    """
    fork = place / name
    return "/forks/" in name and (
        not fork.exists() or str(storage.read_state(fork)) == str(storage.read_state(finished() / name))
    )


def test_a_finished_run_is_damaged(tmp_path: Path) -> None:
    with faults("damaged: a finished run, short") as count:
        torture_finished(tmp_path, count, times=24)


def test_an_unfinished_run_is_damaged(tmp_path: Path) -> None:
    with faults("damaged: an unfinished run, short") as count:
        torture_unfinished(tmp_path, count, times=12)


@LONG
@pytest.mark.parametrize("part", [torture_finished, torture_unfinished])
def test_runs_are_damaged_very_often(part: Callable[..., None], tmp_path: Path) -> None:
    name = part.__name__.removeprefix("torture_")
    with faults(f"damaged: {name} runs") as count:
        part(tmp_path, count, times=300 if name == "finished" else 150)


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


def torture_report(folder: Path, count: Faults, *, times: int) -> None:
    study = undisturbed("study")
    wanted = seen(study)
    read_by_it = [
        path.relative_to(study)
        for path in sorted(study.rglob("*"))
        if path.suffix in (".json", ".jsonl") and path.name not in TELL_THE_TIME - {"done.json"} and path.is_file()
    ]
    shutil.copytree(study, folder / "copy")
    for number in range(times):
        name, how = count.random.choice(read_by_it), count.random.choice(CHANGES)
        path: Any = folder / "copy" / name
        whole = path.read_bytes()
        if not whole:
            continue
        damage(path, how, count)
        found = seen(folder / "copy")
        count.count(faults=1)
        if found[0] == wanted[0]:
            count.count(harmless=1)
        else:
            told = f"seed {count.seed}, {number}: {name} {how}: {found[1]}"
            assert name.name in found[1] or name.parent.name in found[1], told
            count.count(named=1)
        path.write_bytes(whole)
    assert seen(folder / "copy") == wanted
    count.count(lost=0)


@LONG
def test_the_report_names_what_is_damaged_and_uses_nothing_of_it(tmp_path: Path) -> None:
    with faults("damaged: a study, read by the report") as count:
        torture_report(tmp_path, count, times=500)
