"""The command `bench`: times updates of averages on this machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from emabank.study.config import check

BenchModel = Literal["resnet20", "resnet18", "wrn-28-10", "transformer"]


@dataclass(frozen=True, kw_only=True)
class BenchArguments:
    """Time an update of averages here: memory limit, emabank, torch.

    Compares one update of all averages with the memory limit (the time of the memory traffic that no update avoids) and
    with torch's AveragedModel. Takes half a minute; leave the machine idle.
    """

    model: BenchModel = "resnet18"
    """The model whose weights are averaged; transformer: the 85 million parameters in the blocks of GPT-2 small."""
    averages: tuple[int, ...] = (1, 5)
    """How many averages, from 1 to 5; each number is timed."""
    seconds: float = 8
    """Approximate time per number of averages; at least 15 rounds are measured."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """The device of the model and its averages; auto: a GPU if there is one."""
    threads: int | None = None
    """CPU threads. By default torch's choice."""
    json: Path | None = None
    """Write the result to this file. By default it is only printed."""

    def __post_init__(self) -> None:
        check(self, threads=1)
        if not self.averages or not all(1 <= count <= 5 for count in self.averages):
            raise ValueError(f"averages must be numbers from 1 to 5; got {' '.join(map(str, self.averages)) or 'none'}")
        if not 0 < self.seconds <= 3600:
            raise ValueError(f"seconds must be above 0 and at most 3600; got {self.seconds}")

    def run(self, words: list[str]) -> None:
        from emabank.study.bench import run_bench

        run_bench(self)
