"""Studies of a few seconds: small protocols, and an executor in this process that records its work."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from emabank.study.commands.parsing import parse
from emabank.study.config import (
    DataConfig,
    HardwareConfig,
    MeasuringConfig,
    Place,
    ProtocolConfig,
    RunConfig,
    TrainingConfig,
)
from emabank.study.data.digits import digits_dataset
from emabank.study.executors import Outcome
from emabank.study.protocol import resolve
from emabank.study.run_job import Job, folder_of, run_job, task_of
from emabank.study.runs.manifest import PREFIX, Manifest, read_manifest
from emabank.study.runs.reader import RunFolder
from emabank.study.studies import catalogue, scheduler
from emabank.study.studies.catalogue import STUDIES, Study, settings_of, studies_named
from emabank.study.studies.scales import CONSTANT, MAIN
from emabank.study.studies.scheduler import run_studies

DIGITS = digits_dataset()
COMMAND = "emabank run all --runs mine"
WIDE, WRONG = "cifar100-wrn-28-10", "cifar100n-resnet34"

_SMALL = ProtocolConfig(
    data=DataConfig(subset=60, test_subset=30),
    training=TrainingConfig(width=4, epochs=4, batch=32, warmup_epochs=0.5),
    measuring=MeasuringConfig(test_curves=True),
    hardware=HardwareConfig(device="cpu"),
    rates=(0.1,),
    seeds=1,
)
_NOISY = replace(
    _SMALL, data=replace(_SMALL.data, noise=0.4), measuring=MeasuringConfig(test_curves=True, on_train=True)
)
PROTOCOLS = {
    MAIN: replace(_SMALL, rates=(0.1, 0.2)),
    WIDE: replace(_SMALL, training=replace(_SMALL.training, width=5)),
    WRONG: _NOISY,
    CONSTANT: _NOISY,
}
"""As at demo scale, the last two are the same."""


def small_scale(monkeypatch: pytest.MonkeyPatch, protocols: Mapping[str, ProtocolConfig] = PROTOCOLS) -> None:
    """Replace the protocols of every scale by these."""
    monkeypatch.setattr(catalogue, "protocol_of", lambda pair, scale: protocols.get(pair))


class Counting:
    """Runs rounds of jobs in this process; records the jobs, the trained runs and the manifests before each round."""

    def __init__(
        self, place: Place, *, fails: Callable[[RunConfig], bool] = lambda config: False, last: int = 10**9
    ) -> None:
        self.place, self.fails, self.last = place, fails, last
        self.rounds: list[list[RunConfig]] = []
        self.trained: list[str] = []
        self.noted: list[dict[str, Manifest]] = []
        self.counted: list[tuple[int, int]] = []

    def __call__(self, jobs: Sequence[Job], *, before: int, total: int) -> dict[str, Outcome]:
        self.noted.append(manifests(self.place))
        self.counted.append((before, total))
        self.rounds.append([job.config for job in jobs])
        return {folder_of(job.config, self.place).id: self._run(job) for job in jobs}

    def _run(self, job: Job) -> Outcome:
        task, folder = task_of(job, self.place), folder_of(job.config, self.place)
        if folder.is_done():
            return Outcome(task=task, state="already done")
        if self.fails(job.config):
            return Outcome(task=task, state="failed", reason="exit code 3")
        if len(self.trained) == self.last:
            raise KeyboardInterrupt
        self.trained.append(run_job(job, self.place, DIGITS).id)
        return Outcome(task=task, state="done")


def manifests(place: Place) -> dict[str, Manifest]:
    """The manifest of each study in the folder of runs."""
    found = [read_manifest(path) for path in place.runs.glob(f"{PREFIX}*.json")]
    return {manifest.study: manifest for manifest in found}


def runs_in(place: Place) -> set[str]:
    """The ids of the finished runs."""
    return {path.name for path in place.runs.iterdir() if path.is_dir() and RunFolder(path).is_done()}


MOST = [name for name in STUDIES if name != "transfer"]  # whose pairs have no small protocol
OVERHEAD = {"network": "resnet8", "bytes": 7}


def run_here(
    studies: Iterable[str | Study],
    counting: Counting,
    *,
    load: Any = lambda config: DIGITS,
    change: Callable[[ProtocolConfig], ProtocolConfig] = lambda config: config,
) -> dict[str, Manifest]:
    """Run studies in this process and return their manifests."""
    chosen = [STUDIES[study] if isinstance(study, str) else study for study in studies]
    settings = settings_of(chosen, "demo", lambda config: resolve(change(config)))
    written = run_studies(chosen, "demo", settings, counting.place, command=COMMAND, load=load, run_jobs=counting)
    return {manifest.study: manifest for manifest in written}


def run_arguments(words: Sequence[str]) -> Place:
    """Run the studies of a command line in this process, without workers, and return the place of their runs."""
    command = parse(list(words), description="")
    studies, place = studies_named(command.study), command.place
    settings = settings_of(studies, "demo", lambda config: resolve(command.change(config)))
    run_studies(studies, "demo", settings, place, command="", load=lambda config: DIGITS, run_jobs=Counting(place))
    return place


@pytest.fixture(scope="session")
def finished_studies(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Manifest], Counting]:
    """The manifests of all studies, run once for all test files, and their executor (imported in conftest.py)."""
    with pytest.MonkeyPatch.context() as patch:
        small_scale(patch)
        patch.setattr(scheduler, "measure_overhead", lambda config, dataset: OVERHEAD)
        counting = Counting(Place(runs=tmp_path_factory.mktemp("finished") / "runs"))
        return run_here(MOST, counting), counting
