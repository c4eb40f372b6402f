"""What a run of the study is told: frozen, checked when built, complete. Imports neither torch nor numpy.

The command line is made from these classes, so that each default and each explanation stands here alone.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """Train a small network on digits with wrong labels, and compare weight averages with the live weights.

    It takes under a minute on two CPU cores, needs no download, and writes curves.svg, curves.png and rows.json.
    """

    epochs: int = 60
    """How often the network sees the 1297 training images."""
    noise: float = 0.4
    """Share of the training images that get a wrong label, from 0 to 1."""
    seed: int = 0
    """The same seed gives the same numbers, on the same machine with the same number of threads."""
    out: Path = Path("emabank-demo")
    """Folder for the figure and the numbers; made if it is not there."""
    threads: int = 1
    """CPU threads. So small a network gains little from more, and one gives the same numbers whatever else runs."""

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"epochs is {self.epochs}; give 1 or more")
        if not 0 <= self.noise <= 1:
            raise ValueError(f"noise is {self.noise}; give a share from 0 to 1, such as 0.4")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; give 0 or a positive number")
        if self.threads < 1:
            raise ValueError(f"threads is {self.threads}; give 1 or more")
