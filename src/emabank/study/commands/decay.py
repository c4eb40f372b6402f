"""The command `decay`: converts a decay to every common form. Imports no torch; the maths is in `emabank.rules`."""

import math
from collections.abc import Sequence
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
    """Convert a decay: per step, per update, half-life, window, warm-up.

    Give one or more decays, or another form: `emabank decay 0.999`, `emabank decay --half-life 693`.
    """

    decay: Annotated[
        tyro.conf.Positional[tuple[float, ...]], tyro.conf.arg(metavar="[DECAY ...]", help_behavior_hint="")
    ] = ()
    """The weight of the past per optimizer step."""
    per_update: tuple[float, ...] = ()
    """Instead: the weight of the past per update, as in the paper."""
    half_life: tuple[float, ...] = ()
    """Instead: the optimizer steps after which half of the past is left."""
    window: tuple[float, ...] = ()
    """Instead: 1 / (1 - decay), the optimizer steps that an average remembers."""
    half_life_epochs: tuple[float, ...] = ()
    """Instead: the half-life in epochs."""
    window_epochs: tuple[float, ...] = ()
    """Instead: the window in epochs."""
    batch: int | None = None
    """The batch size that the decay is for, to convert it to another one."""
    to_batch: int | None = None
    """The batch size that you want: the decay becomes decay^(to-batch / batch)."""
    every: int = 16
    """Optimizer steps between two updates."""
    steps_per_epoch: float | None = None
    """Optimizer steps per epoch (at --batch), to show everything in epochs as well."""

    def __post_init__(self) -> None:
        check_at_least("every", self.every, 1)
        check_at_least("batch", self.batch, 1)
        check_at_least("to_batch", self.to_batch, 1)
        if (self.batch is None) != (self.to_batch is None):
            raise ValueError("--batch needs --to-batch; give both, such as --batch 256 --to-batch 4096")
        if self.steps_per_epoch is not None and not 0 < self.steps_per_epoch < math.inf:
            raise ValueError(f"--steps-per-epoch must be above 0, such as 391; got {self.steps_per_epoch:g}")
        forms = ("decay", "per_update", "half_life", "window", "half_life_epochs", "window_epochs")
        used = [name for name in forms if getattr(self, name)]
        if len(used) != 1:
            got = " and ".join(_option(name) for name in used) or "none"
            options = ", ".join(_option(name) for name in forms[1:])
            raise ValueError(f"give decays, such as 0.999, or one of {options}; got {got}")
        if used[0].endswith("_epochs") and self.steps_per_epoch is None:
            raise ValueError(f"{_option(used[0])} needs --steps-per-epoch, such as 391")
        for decay in (*self.decay, *self.per_update):
            if not 0 <= decay <= 1:
                raise ValueError(f"{_option(used[0])} must be from 0 to 1, such as 0.999; got {decay:g}")
        for steps in self.half_lives:
            if not 0 < steps < math.inf:
                raise ValueError(f"a half-life must be above 0 steps; got {steps:g}")
        for steps in self.windows:
            if not 1 <= steps < math.inf:
                raise ValueError(f"a window must be 1 step or more; got {steps:g}")

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
    """The requested decays: each as Python code for a bank's rule, and as a value per optimizer step."""
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
    """Print the decays in every form, and the Python code for a bank with them."""
    console = console or Console()
    rules, decays = zip(*decays_of(asked), strict=True)
    fitting = max(1, (console.width - 35) // 11)  # so that a narrow terminal cuts nothing
    for start in range(0, len(decays), fitting):
        console.print(_table(asked, decays[start : start + fitting]))
    _explain(asked, rules, console)


def _table(asked: DecayArguments, decays: Sequence[float]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("decay per step", no_wrap=True)
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
            # With a larger batch, an epoch has fewer steps.
            per_epoch = asked.steps_per_epoch * (asked.batch or 1) / (asked.to_batch or 1)
            table.add_row("  in epochs", *(_epochs(count / per_epoch) for count in steps), style="dim")
    return table


def _explain(asked: DecayArguments, rules: Sequence[str], console: Console) -> None:
    if asked.batch is not None and asked.to_batch is not None:
        say(
            console,
            f"For batches of {asked.to_batch}: decay^{asked.to_batch / asked.batch:g} remembers as many samples as the "
            f"decay did at {asked.batch}. Steps are those of the new batch size. Scale the learning rate too "
            "(Busbridge et al. 2023).",
        )
    period = f", every={asked.every}" if asked.per_update and asked.batch is None else ""
    say(
        console,
        "Half of the past is left after one half-life. An average remembers about one window, 1 / (1 - decay). The "
        "warm-up keeps the decay low at the start.",
    )
    say(console, f"In Python: EMABank(model, [{', '.join(rules)}]{period})")


def _option(name: str) -> str:
    return "a decay" if name == "decay" else f"--{name.replace('_', '-')}"


def _steps(value: float) -> str:
    return "never ends" if value == math.inf else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _epochs(value: float) -> str:
    return "" if value == math.inf else f"{value:,.1f}" if value >= 1 else f"{value:.2g}"
