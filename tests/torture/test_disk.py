"""Failing writes, each in turn, and a full disk: a clear error, and the next start ends as if undisturbed."""

import errno
import io
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console

from emabank.study.config import Place
from emabank.study.reporting import make_report
from emabank.study.run_job import Job, run_job
from emabank.study.studies.catalogue import STUDIES
from tests.study.small_folder import run_studies
from tests.study.small_runs import config, digits, one_thread  # noqa: F401
from tests.torture import averages
from tests.torture import faults as subjects
from tests.torture.averages import scratch_folder
from tests.torture.disk import REASONS, disk, filled, small_disk
from tests.torture.faults import LONG, Faults, difference, faults, files_in, undisturbed


def train(folder: Path) -> None:
    job = Job(config(data={"subset": 60}, training={"epochs": 2, "width": 2}), forks=(1,))
    run_job(job, Place(runs=folder), digits()[0])


def conclude(folder: Path) -> None:
    """A study whose runs are all done: the files of the study itself are written."""
    manifests = run_studies(folder, [STUDIES["lr-search"]])
    failed = [manifest.reason for manifest in manifests if manifest.state == "failed"]
    if failed:  # a study reports it and continues with its other pairs
        raise OSError(next(number for number, words in REASONS.items() if words in failed[0]), failed[0])


def report(folder: Path) -> None:
    make_report(folder, None, console=Console(file=io.StringIO()))


def make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


@cache
def concluded() -> Path:
    """The folder of a small study, to be copied."""
    folder = scratch_folder() / "concluded"
    conclude(folder)
    return folder


def copy_runs(folder: Path) -> None:
    """Copy the same study with its runs only."""
    shutil.copytree(concluded(), folder)
    for path in [*folder.glob("protocol-*"), *folder.glob("study-*")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def copy_study(folder: Path) -> None:
    shutil.copytree(undisturbed("study"), folder)


Part = tuple[Callable[[Path], None], Callable[[Path], object]]
PARTS: dict[str, Part] = {
    "training": (make_folder, train),
    "library": (make_folder, subjects.library),
    "average": (averages.prepare, averages.average_or_raise),
    "study's end": (copy_runs, conclude),
    "report": (copy_study, report),
}


def count_operations(part: Part, folder: Path) -> tuple[int, dict[str, bytes]]:
    """The number of disk operations, and the files without faults."""
    prepare, work = part
    prepare(folder)
    with disk(folder) as counted:
        work(folder)
    assert counted.count > 5, "operations are counted"
    return counted.count, files_in(folder)


def torture(part: Part, folder: Path, count: Faults, *, most: int | None) -> None:
    """Let each operation fail in turn, or `most` of them; after each, start again and compare."""
    prepare, work = part
    operations, wanted = count_operations(part, folder / "whole")
    failures = [(at, number) for at in range(1, operations + 1) for number in (errno.ENOSPC, errno.EIO)]
    for at, number in failures if most is None else count.random.sample(failures, most):
        place = folder / f"{at}-{number}"
        prepare(place)
        case = f"seed {count.seed}, operation {at}, {errno.errorcode[number]}"
        try:
            with disk(place, fails_at=at, number=number) as broken:
                work(place)
        except OSError as error:
            count.count(reported=1)
            assert error.errno == number, f"{case}, {broken.failed}: {error!r}"
        assert broken.failed, case
        work(place)
        assert difference(files_in(place), wanted) == [], f"{case}, {broken.failed}"
        count.count(faults=1)
        shutil.rmtree(place)
    count.count(operations=operations, lost=0)


def some_and_all(some: dict[str, int], every: dict[str, int | None]) -> pytest.MarkDecorator:
    few = [pytest.param(name, amount, id=f"{name}, short") for name, amount in some.items()]
    many = [pytest.param(name, amount, id=name, marks=LONG) for name, amount in every.items()]
    return pytest.mark.parametrize(("name", "amount"), [*few, *many])


@some_and_all(
    {"training": 6, "library": 6, "average": 6, "study's end": 6},
    {"training": 120, "library": 150, "average": None, "study's end": 50, "report": 25},
)
def test_a_restart_recovers_from_a_failed_disk_operation(name: str, amount: int | None, tmp_path: Path) -> None:
    with faults(f"failing writes: {name}") as count:
        torture(PARTS[name], tmp_path, count, most=amount)


# A full disk ----------------------------------------------------------------------------------------------------------


def fill(part: Part, folder: Path, count: Faults, *, times: int) -> None:
    """Start with too little space; then free the space, start again, and compare."""
    prepare, work = part
    prepare(folder / "whole")
    initial = size_of(folder / "whole")
    work(folder / "whole")
    wanted = files_in(folder / "whole")
    needed = size_of(folder / "whole") - initial
    with small_disk(folder / "disk", size=f"{max(16 << 20, 6 * (initial + needed))}") as mounted:
        for number in range(times):
            place = mounted / "work"
            prepare(place)
            space = count.random.randrange(0, needed)
            reported = 0
            with filled(mounted, but=space):
                try:
                    work(place)
                except OSError as error:
                    reported = 1
                    assert error.errno == errno.ENOSPC, f"seed {count.seed}, space {space}: {error!r}"
            count.count(faults=1, reported=reported)
            work(place)
            assert difference(files_in(place), wanted) == [], f"seed {count.seed}, time {number}, space {space}"
            shutil.rmtree(place)
    count.count(lost=0)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@some_and_all(
    {"training": 3, "library": 3, "average": 3},
    {"training": 30, "library": 30, "average": 30, "study's end": 15, "report": 8},
)
def test_a_restart_recovers_from_a_full_disk(name: str, amount: int, tmp_path: Path) -> None:
    with faults(f"full disk: {name}") as count:
        fill(PARTS[name], tmp_path, count, times=amount)
