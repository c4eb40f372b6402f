"""A small folder of runs of real studies: one pair with every arm, trained in a few seconds."""

import fcntl
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from emabank.study.config import AveragesConfig, Place, ProtocolConfig
from emabank.study.runs.manifest import Manifest
from emabank.study.studies.catalogue import STUDIES, Study
from emabank.study.studies.scales import MAIN
from tests.study.studies.small_studies import COMMAND as COMMAND
from tests.study.studies.small_studies import Counting, run_here

Change = Callable[[ProtocolConfig], ProtocolConfig]

RATES, SEEDS, EPOCHS = (0.05, 0.2), 2, 3
NAMES = ("generalization", "constant-lr", "step-decay", "bootstrap", "sampling-period", "posthoc")
ALL = tuple(replace(STUDIES[name], pairs=(MAIN,)) for name in NAMES)
"""Studies of one pair that together have every arm."""


def small(config: ProtocolConfig) -> ProtocolConfig:
    """The configuration with fewer images, epochs, channels and averages."""
    return replace(
        config,
        data=replace(config.data, subset=60, test_subset=30, noise=0.2),
        training=replace(config.training, epochs=EPOCHS, width=4, batch=20, warmup_epochs=0.4),
        averages=AveragesConfig(decays=(0.7, 0.8, 0.9), every=2),
        rates=RATES,
        seeds=SEEDS,
    )


def run_studies(runs: Path, studies: Sequence[Study], change: Change = small) -> list[Manifest]:
    """Run studies in this process."""
    return list(run_here(studies, Counting(Place(runs=runs)), change=change).values())


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder, trained once for all test processes; a test that changes files uses a copy."""
    place = tmp_path_factory.getbasetemp()
    place = place.parent if "PYTEST_XDIST_WORKER" in os.environ else place
    with open(place / "small-folder-lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not (place / "small-folder").exists():
            run_studies(place / "small-folder-part", ALL)
            (place / "small-folder-part").rename(place / "small-folder")
    return place / "small-folder"


@pytest.fixture
def runs(finished: Path, tmp_path: Path) -> Path:
    """A copy of the folder."""
    return Path(shutil.copytree(finished, tmp_path / "runs"))


@pytest.fixture
def bare(finished: Path, tmp_path: Path) -> Path:
    """A copy of the folder without its runs, quick to read: all variants are skipped."""
    folder = tmp_path / "runs"
    shutil.copytree(finished, folder, ignore=lambda folder, names: [name for name in names if name[0] not in "psr"])
    return folder
