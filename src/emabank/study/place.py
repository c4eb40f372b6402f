"""Where a study's files are and how its work is done: no part of any result. Imports no torch."""

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from emabank.study.values import check_from


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
    """Runs at a time, each a process. By default as many as there are cores for their threads, and on a GPU one."""
    checkpoint_seconds: float = 60.0
    """Seconds between two checkpoints of a run."""
    tensorboard: bool = False
    """Whether curves are written for TensorBoard as well, into each run's folder."""
    wandb: str | None = None
    """The Weights & Biases project that runs are logged to as well. By default none."""

    def __post_init__(self) -> None:
        check_from("jobs", self.jobs, 1)
        check_from("checkpoint_seconds", self.checkpoint_seconds, 0)

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
