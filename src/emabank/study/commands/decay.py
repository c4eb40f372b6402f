"""The command `decay`: what a decay means, in every way that people say it. Imports no torch.

The maths is in the library's rules, whose conversions are public.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from emabank.rules import (
    PAPER_PERIOD,
    for_batch_size,
    format_decay,
    from_half_life,
    from_window,
    half_life,
    per_step,
    warmup_end,
    window,
)
from emabank.study.config import check_at_least
from emabank.study.executors.progress import say


@dataclass(frozen=True, kw_only=True)
class DecayArguments:
    """Convert a decay into all its forms: per step, per update, half-life, window, warm-up.

    Give one or more decays, or another form: `emabank decay 0.999`, `emabank decay --half-life 693`.
    """

    decay: Annotated[tyro.conf.Positional[tuple[float, ...]], tyro.conf.arg(metavar="[DECAY ...]")] = ()
    """The weight of the past per optimizer step."""
    per_update: tuple[float, ...] = ()
    """Instead: the weight of the past per update, as in the paper."""
    half_life: tuple[float, ...] = ()
    """Instead: after how many optimizer steps half of the past is left."""
    window: tuple[float, ...] = ()
    """Instead: how many optimizer steps it remembers."""
    half_life_epochs: tuple[float, ...] = ()
    """Instead: the half-life in epochs."""
    window_epochs: tuple[float, ...] = ()
    """Instead: the window in epochs."""
    batch: int | None = None
    """The batch size that the decay is for, to convert it to another one."""
    to_batch: int | None = None
    """The batch size that you want: the decay becomes decay^(to-batch / batch)."""
    every: int = 16
    """How many optimizer steps there are between two updates."""
    steps_per_epoch: float | None = None
    """How many optimizer steps an epoch has, to say it in epochs too. By default that is unknown."""

    def __post_init__(self) -> None:
        check_at_least("every", self.every, 1)
        check_at_least("batch", self.batch, 1)
        check_at_least("to_batch", self.to_batch, 1)
        if (self.batch is None) != (self.to_batch is None):
            raise ValueError("batch and to_batch belong together; give both, such as --batch 256 --to-batch 4096")
        if self.steps_per_epoch is not None and not 0 < self.steps_per_epoch < math.inf:
            raise ValueError(f"steps_per_epoch is {self.steps_per_epoch}; give a number above 0, such as 391")
        forms = ("decay", "per_update", "half_life", "window", "half_life_epochs", "window_epochs")
        used = [name for name in forms if getattr(self, name)]
        if len(used) != 1:
            raise ValueError(f"{' and '.join(used) or 'nothing'} is given; give one of {', '.join(forms)}")
        if used[0].endswith("_epochs") and self.steps_per_epoch is None:
            raise ValueError(f"{used[0]} needs to know how long an epoch is; give steps_per_epoch, such as 391")
        for decay in (*self.decay, *self.per_update):
            if not 0 <= decay <= 1:
                raise ValueError(f"{used[0]} is {decay}; a decay must be from 0 to 1, such as 0.999")
        for steps in self.half_lives:
            if not 0 < steps < math.inf:
                raise ValueError(f"a half-life of {steps:g} steps: give a number above 0")
        for steps in self.windows:
            if not 1 <= steps < math.inf:
                raise ValueError(f"a window of {steps:g} steps: give 1 step or more")

    @property
    def half_lives(self) -> tuple[float, ...]:
        """In steps, from either form."""
        return self.half_life + tuple(epochs * (self.steps_per_epoch or 0) for epochs in self.half_life_epochs)

    @property
    def windows(self) -> tuple[float, ...]:
        """In steps, from either form."""
        return self.window + tuple(epochs * (self.steps_per_epoch or 0) for epochs in self.window_epochs)

    def run(self, words: list[str]) -> None:
        show_decay(self)


def decays_of(asked: DecayArguments) -> list[tuple[str, float]]:
    """The decays that were asked for: the rule that gives each to a bank, and its value per optimizer step."""
    decays = (
        [(f"{decay!r}", decay) for decay in asked.decay]
        + [(f"EMA(per_update={decay!r})", per_step(decay, asked.every)) for decay in asked.per_update]
        + [(f"EMA(half_life={steps!r})", from_half_life(steps)) for steps in asked.half_lives]
        + [(f"{from_window(steps)!r}", from_window(steps)) for steps in asked.windows]
    )
    if asked.batch is None or asked.to_batch is None:
        return decays
    scaled = [for_batch_size(decay, asked.batch, asked.to_batch) for _, decay in decays]
    return [(f"{decay!r}", decay) for decay in scaled]


def show_decay(asked: DecayArguments, console: Console | None = None) -> None:
    """Print what decays mean."""
    console = console or Console()
    rules, decays = zip(*decays_of(asked), strict=True)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("decay per step")
    for decay in decays:
        table.add_column(format_decay(decay), justify="right", no_wrap=True)
    table.add_row(f"decay per update, every {asked.every} steps", *(f"{decay**asked.every:.6g}" for decay in decays))
    for name, steps in (
        ("half-life, in steps", [half_life(decay) for decay in decays]),
        ("window, in steps", [window(decay) for decay in decays]),
        ("warm-up, in steps", [warmup_end(round(decay**PAPER_PERIOD, 12)) for decay in decays]),
    ):
        table.add_row(name, *map(_steps, steps))
        if asked.steps_per_epoch is not None:
            table.add_row("  in epochs", *(_epochs(count / asked.steps_per_epoch) for count in steps), style="dim")
    console.print(table)
    if asked.batch is not None and asked.to_batch is not None:
        say(
            console,
            f"For batches of {asked.to_batch}: decay^{asked.to_batch / asked.batch:g} remembers as many samples as at "
            f"{asked.batch}, and the steps here are the new ones. Scale the learning rate too (Busbridge et al. 2023).",
        )
    period = f", every={asked.every}" if asked.per_update and asked.batch is None else ""
    say(
        console,
        "After a half-life half of the past is left. The window, 1 / (1 - decay), is what an average remembers. The "
        "warm-up holds the decay down at the beginning.",
    )
    say(console, f"In Python: EMABank(model, [{', '.join(rules)}]{period})")


def _steps(value: float) -> str:
    return "never ends" if value == math.inf else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _epochs(value: float) -> str:
    return "" if value == math.inf else f"{value:,.1f}" if value >= 1 else f"{value:.2g}"
