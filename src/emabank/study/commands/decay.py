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

from emabank.rules import from_half_life, from_window, half_life, per_step, per_update, warmup_end, window
from emabank.study.config import check_at_least
from emabank.study.executors.progress import say


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

    def run(self, words: list[str]) -> None:
        show_decay(self)


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """One decay in all its forms.

    Args:
        rule: what a bank is given for it.
        update: the weight of the past in one update.
        step: in one optimizer step.
        half_life: optimizer steps until half of the past is left.
        window: optimizer steps that it remembers, its time constant.
        warmup: the count at which the warm-up no longer holds it down, be it of steps or of updates.
    """

    rule: str
    update: float
    step: float
    half_life: float
    window: float
    warmup: float


def meanings(asked: DecayArguments) -> list[Meaning]:
    """What each of the decays that were asked for means.

    >>> [round(meaning.half_life) for meaning in meanings(DecayArguments(decay=(0.968, 0.998)))]
    [341, 5540]
    """
    return (
        [_from_decay(value, asked.every) for value in asked.decay]
        + [_from_step(value, asked.every) for value in asked.per_step]
        + [_from_half_life(value, asked.every) for value in asked.half_lives]
        + [_from_window(value, asked.every) for value in asked.windows]
    )


def _from_decay(value: float, every: int) -> Meaning:
    return _meaning(f"{value!r}", value, per_step(value, every), half_life(value) * every, every)


def _from_step(value: float, every: int) -> Meaning:
    return _meaning(f"EMA(per_step={value!r})", per_update(value, every), value, half_life(value), every)


def _from_half_life(steps: float, every: int) -> Meaning:
    step = from_half_life(steps)
    return _meaning(f"EMA(half_life={steps!r})", per_update(step, every), step, steps, every)


def _from_window(steps: float, every: int) -> Meaning:
    update = from_window(steps / every)
    return _meaning(f"{update!r}", update, per_step(update, every), half_life(update) * every, every)


def _meaning(rule: str, update: float, step: float, steps: float, every: int) -> Meaning:
    return Meaning(
        rule=rule, update=update, step=step, half_life=steps, window=window(update) * every, warmup=warmup_end(update)
    )


def show_decay(asked: DecayArguments, console: Console | None = None) -> None:
    """Print what decays mean.

    >>> show_decay(DecayArguments(half_life=(693.0,)), Console(quiet=True))
    """
    console = console or Console()
    rows = meanings(asked)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("decay of one update")
    for meaning in rows:
        table.add_column(f"{meaning.update:.6g}", justify="right", no_wrap=True)
    table.add_row("decay of one step", *(_near_one(meaning.step) for meaning in rows))
    for name, steps in (
        ("half-life, in steps", [meaning.half_life for meaning in rows]),
        ("window, in steps", [meaning.window for meaning in rows]),
        ("warm-up ends at step", [meaning.warmup for meaning in rows]),
        ("  if updates are counted", [meaning.warmup * asked.every for meaning in rows]),
    ):
        table.add_row(name, *map(_steps, steps))
        if asked.steps_per_epoch is not None:
            epochs = [step / asked.steps_per_epoch for step in steps]
            table.add_row("  in epochs", *map(_epochs, epochs), style="dim")
    console.print(table)
    rules = ", ".join(meaning.rule for meaning in rows)
    period = f"every {asked.every} steps" if asked.every > 1 else "at every step"
    for line in (
        f"With an update {period}. After a half-life half of the past is left; a window is 1 / (1 - decay) updates, "
        "what an average remembers; the warm-up holds a decay below (t + 1) / (t + 10).",
        f"In Python: EMABank(model, [{rules}], every={asked.every})",
    ):
        say(console, line)


def _near_one(decay: float) -> str:
    """With three digits of 1 - decay."""
    return f"{decay:.3g}" if decay in (0, 1) else f"{decay:.{2 - math.floor(math.log10(1 - decay))}f}"


def _steps(value: float) -> str:
    return "never ends" if value == math.inf else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _epochs(value: float) -> str:
    return "" if value == math.inf else f"{value:,.1f}" if value >= 1 else f"{value:.2g}"
