"""Arguments of the commands that need no study: average, decay and bench. Imports tyro.

Their other half, as for all commands, is in arguments.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from emabank.study.config import check_at_least, check_choices


@dataclass(frozen=True, kw_only=True)
class AverageArguments:
    """Average existing checkpoints into one, in the layout of the last one.

    Reads safetensors and torch files, Lightning checkpoints, and Hugging Face folders, sharded or not. By default all
    checkpoints have the same weight. Values are read in chunks, so even the largest checkpoints need little memory.
    """

    checkpoints: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="CHECKPOINT [CHECKPOINT ...]")]
    """Files or folders, in order. A folder of checkpoints stands for all of them, sorted by number."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """Where to write the average: a file if the checkpoints are files, a folder if they are folders."""
    decay: float | None = None
    """Exponential moving average: a checkpoint counts this many times as much as the next one; at least 0, below 1. By
    default off."""
    last: int | None = None
    """Average only this many checkpoints at the end (LAWA). By default all."""
    weights: tuple[float, ...] = ()
    """One weight per checkpoint, relative to each other. By default all are equal."""
    key: str | None = None
    """Key of the state dict in torch files. By default it is detected (state_dict, model, ...)."""
    force: bool = False
    """Replace an existing file or folder."""
    dry_run: bool = False
    """Check whether the checkpoints match and show what would be done; write nothing."""

    def __post_init__(self) -> None:
        if not self.checkpoints:
            raise ValueError("checkpoints must not be empty; name two or more, or a folder of them")
        if self.out is None and not self.dry_run:
            raise ValueError("--out is required, unless --dry-run is set")
        options = {"decay": self.decay is not None, "last": self.last is not None, "weights": bool(self.weights)}
        if sum(options.values()) > 1:
            names = " and ".join(name for name, is_set in options.items() if is_set)
            raise ValueError(f"{names} exclude each other; choose one, or none for the plain mean")
        check_at_least("last", self.last, 1)


@dataclass(frozen=True, kw_only=True)
class DecayArguments:
    """Say what a decay means, in every way that people say it: per update, per step, half-life, window, warm-up.

    Give one or more decays, or the same in another form: `emabank decay 0.998`, `emabank decay --half-life 693`.
    """

    decay: Annotated[tyro.conf.Positional[tuple[float, ...]], tyro.conf.arg(metavar="[DECAY ...]")] = ()
    """The weight of the past in one update."""
    per_step: tuple[float, ...] = ()
    """Instead: the weight of the past in one optimizer step."""
    half_life: tuple[float, ...] = ()
    """Instead: after how many optimizer steps half of the past is left."""
    window: tuple[float, ...] = ()
    """Instead: how many optimizer steps it remembers."""
    half_life_epochs: tuple[float, ...] = ()
    """Instead: the half-life in epochs."""
    window_epochs: tuple[float, ...] = ()
    """Instead: the window in epochs."""
    every: int = 16
    """How many optimizer steps there are between two updates."""
    steps_per_epoch: float | None = None
    """How many optimizer steps an epoch has, to say it in epochs too. By default that is unknown."""

    def __post_init__(self) -> None:
        check_at_least("every", self.every, 1)
        if self.steps_per_epoch is not None and not 0 < self.steps_per_epoch < math.inf:
            raise ValueError(f"steps_per_epoch is {self.steps_per_epoch}; give a number above 0, such as 391")
        forms = ("decay", "per_step", "half_life", "window", "half_life_epochs", "window_epochs")
        given = [name for name in forms if getattr(self, name)]
        if len(given) != 1:
            said = " and ".join(given) if given else "nothing"
            raise ValueError(f"{said} is given; give one of decay, {', '.join(forms[1:])}")
        if given[0].endswith("_epochs") and self.steps_per_epoch is None:
            raise ValueError(f"{given[0]} needs to know how long an epoch is; give steps_per_epoch, such as 391")
        for name, value in (*(("decay", each) for each in self.decay), *(("per_step", each) for each in self.per_step)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is {value}; a decay is the weight of the past, from 0 to 1, such as 0.998")
        for steps in self.half_lives:
            if not 0 < steps < math.inf:
                raise ValueError(f"a half-life of {steps:g} steps: give a number above 0")
        for steps in self.windows:
            if not self.every <= steps < math.inf:
                least = f"give {self.every} steps or more"
                raise ValueError(f"a window of {steps:g} steps with an update every {self.every}: {least}")

    @property
    def half_lives(self) -> tuple[float, ...]:
        """In steps, from either form."""
        return self.half_life + tuple(epochs * (self.steps_per_epoch or 0) for epochs in self.half_life_epochs)

    @property
    def windows(self) -> tuple[float, ...]:
        """In steps, from either form."""
        return self.window + tuple(epochs * (self.steps_per_epoch or 0) for epochs in self.window_epochs)


BenchModel = Literal["resnet20", "resnet18", "wrn-28-10", "transformer"]


@dataclass(frozen=True, kw_only=True)
class BenchArguments:
    """Time one update of all averages on this machine, compared with the memory limit and torch's AveragedModel.

    The memory limit is the time of the memory traffic that no update avoids. Takes half a minute; leave the machine
    idle meanwhile.
    """

    model: BenchModel = "resnet18"
    """Whose weights are averaged; transformer: the 85 million parameters in the blocks of GPT-2 small."""
    averages: tuple[int, ...] = (1, 5)
    """How many averages, from 1 to 5; each number is timed."""
    seconds: float = 8
    """Approximate time per number of averages."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where the model and its averages are; auto: a GPU if there is one."""
    threads: int | None = None
    """CPU threads. By default torch's choice."""
    json: Path | None = None
    """Write the result to this file. By default it is only printed."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least("threads", self.threads, 1)
        if not self.averages or not all(1 <= count <= 5 for count in self.averages):
            raise ValueError(f"averages must be numbers from 1 to 5; got {' '.join(map(str, self.averages)) or 'none'}")
        if not 0 < self.seconds <= 3600:
            raise ValueError(f"seconds must be above 0 and at most 3600; got {self.seconds}")
