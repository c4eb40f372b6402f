"""Where a study's files are and how its work is done: no part of any result. Imports no torch."""

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from emabank.study.values import check_choices, check_from


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where files are and how the work is done; no part of any result."""

    data: Path = Path("data")
    """Folder with the data sets; digits need none."""
    cache: Path | None = None
    """Folder for decoded images; by default .emabank-cache in the data folder."""
    runs: Path = Path("runs")
    """Folder for the runs; made if it is not there."""
    jobs: int | None = None
    """Runs at a time, each a process. By default as many as there are cores for their threads, and on a GPU one; on a
    cluster as many as it has room for."""
    executor: Literal["local", "slurm", "ray"] = "local"
    """Where runs are carried out: processes of this machine, jobs of Slurm, or tasks of Ray."""
    address: str | None = None
    """Of a Ray cluster, such as auto or ray://head:10001. By default a Ray of this machine alone."""
    slurm: tuple[str, ...] = ()
    """Settings for Slurm's jobs, such as partition=gpu time=120 (minutes) mem=16GB. By default 60 minutes."""
    retries: int = 2
    """How often a run on a cluster whose worker died is started again, from its checkpoint."""
    checkpoint_seconds: float = 60.0
    """Seconds between two checkpoints of a run."""
    tensorboard: bool = False
    """Whether curves are written for TensorBoard as well, into each run's folder."""
    wandb: str | None = None
    """The Weights & Biases project that runs are logged to as well. By default none."""

    def __post_init__(self) -> None:
        check_from("jobs", self.jobs, 1)
        check_from("checkpoint_seconds", self.checkpoint_seconds, 0)
        check_from("retries", self.retries, 0)
        check_choices(self)
        self.slurm_settings()
        for name, given in (("address", self.address), ("slurm", self.slurm)):
            wanted = "ray" if name == "address" else "slurm"
            if given and self.executor != wanted:
                raise ValueError(
                    f"{name} is {given!r}, which is for --executor {wanted}; the executor is {self.executor}"
                )

    def slurm_settings(self) -> dict[str, int | str]:
        """The settings for Slurm by name, whole numbers as such.

        >>> Place(executor="slurm", slurm=("partition=gpu", "time=120")).slurm_settings()
        {'partition': 'gpu', 'time': 120}
        """
        found: dict[str, int | str] = {}
        for each in self.slurm:
            name, equals, value = each.partition("=")
            if not equals or not name.isidentifier():
                raise ValueError(f"slurm has {each!r}; give settings such as partition=gpu or time=120")
            found[name] = int(value) if value.isdecimal() else value
        return found

    def absolute(self) -> "Place":
        """The same with absolute paths, for processes that may start elsewhere.

        >>> Place().absolute().runs.is_absolute()
        True
        """
        cache = None if self.cache is None else self.cache.absolute()
        return replace(self, data=self.data.absolute(), runs=self.runs.absolute(), cache=cache)

    def check_trackers(self) -> None:
        """`ValueError` when a package is not installed that curves are asked for.

        >>> Place().check_trackers()
        """
        for name, asked in (("tensorboard", self.tensorboard), ("wandb", self.wandb is not None)):
            found = find_spec(name) if asked else None
            # Without an origin it is a folder of that name, such as wandb makes where it is used.
            if asked and (found is None or found.origin is None):
                raise ValueError(f'{name} is asked for and not installed; pip install "emabank[trackers]"')
