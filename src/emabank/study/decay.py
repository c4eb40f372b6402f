"""From `emabank decay` to what a decay means, in every way that people say it. Imports no torch.

The maths is in the library's rules, whose conversions are public.
"""

import math
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from emabank.rules import (
    PAPER_PERIOD,
    format_decay,
    from_half_life,
    from_window,
    half_life,
    per_step,
    warmup_end,
    window,
)
from emabank.study.own_arguments import DecayArguments


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """One decay in all its forms.

    Args:
        rule: how a bank gets it.
        decay: the weight of the past per optimizer step.
    """

    rule: str
    decay: float

    @property
    def half_life(self) -> float:
        """Optimizer steps until half of the past is left."""
        return half_life(self.decay)

    @property
    def window(self) -> float:
        """Optimizer steps that it remembers, its time constant."""
        return window(self.decay)

    @property
    def warmup(self) -> float:
        """Optimizer steps for which the decay warm-up lasts."""
        return warmup_end(round(self.decay**PAPER_PERIOD, 12))


def meanings(asked: DecayArguments) -> list[Meaning]:
    """The meaning of each of the decays that were asked for.

    >>> [round(meaning.half_life) for meaning in meanings(DecayArguments(per_update=(0.968, 0.998)))]
    [341, 5540]
    """
    return (
        [Meaning(rule=f"{decay!r}", decay=decay) for decay in asked.decay]
        + [Meaning(rule=f"EMA(per_update={decay!r})", decay=per_step(decay, asked.every)) for decay in asked.per_update]
        + [Meaning(rule=f"EMA(half_life={steps!r})", decay=from_half_life(steps)) for steps in asked.half_lives]
        + [Meaning(rule=f"{from_window(steps)!r}", decay=from_window(steps)) for steps in asked.windows]
    )


def show_decay(asked: DecayArguments, console: Console | None = None) -> None:
    """Print what decays mean.

    >>> show_decay(DecayArguments(half_life=(693.0,)), Console(quiet=True))
    """
    console = console or Console()
    found = meanings(asked)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("decay per step")
    for meaning in found:
        table.add_column(format_decay(meaning.decay), justify="right", no_wrap=True)
    table.add_row(f"decay per update, every {asked.every} steps", *(f"{m.decay**asked.every:.6g}" for m in found))
    for name, steps in (
        ("half-life, in steps", [meaning.half_life for meaning in found]),
        ("window, in steps", [meaning.window for meaning in found]),
        ("warm-up, in steps", [meaning.warmup for meaning in found]),
    ):
        table.add_row(name, *map(_steps, steps))
        if asked.steps_per_epoch is not None:
            table.add_row("  in epochs", *(_epochs(count / asked.steps_per_epoch) for count in steps), style="dim")
    console.print(table)
    rules = ", ".join(meaning.rule for meaning in found)
    period = f", every={asked.every}" if asked.per_update else ""
    for line in (
        "After a half-life half of the past is left. The window, 1 / (1 - decay), is what an average remembers. The "
        "warm-up holds the decay down at the beginning.",
        f"In Python: EMABank(model, [{rules}]{period})",
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _steps(value: float) -> str:
    return "never ends" if value == math.inf else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _epochs(value: float) -> str:
    return "" if value == math.inf else f"{value:,.1f}" if value >= 1 else f"{value:.2g}"
