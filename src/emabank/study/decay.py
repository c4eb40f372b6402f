"""From `emabank decay` to what a decay means, in every way that people say it. Imports no torch.

The maths is in the library's rules, whose conversions are public.
"""

import math
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from emabank.rules import from_half_life, from_window, half_life, per_step, per_update, warmup_end, window
from emabank.study.own_arguments import DecayArguments


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

    >>> [round(each.half_life) for each in meanings(DecayArguments(decay=(0.968, 0.998)))]
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
    found = meanings(asked)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("decay of one update")
    for each in found:
        table.add_column(f"{each.update:.6g}", justify="right", no_wrap=True)
    table.add_row("decay of one step", *(_near_one(each.step) for each in found))
    for name, steps in (
        ("half-life, in steps", [each.half_life for each in found]),
        ("window, in steps", [each.window for each in found]),
        ("warm-up ends at step", [each.warmup for each in found]),
        ("  if updates are counted", [each.warmup * asked.every for each in found]),
    ):
        table.add_row(name, *map(_steps, steps))
        if asked.steps_per_epoch is not None:
            epochs = [each / asked.steps_per_epoch for each in steps]
            table.add_row("  in epochs", *map(_epochs, epochs), style="dim")
    console.print(table)
    rules = ", ".join(each.rule for each in found)
    period = f"every {asked.every} steps" if asked.every > 1 else "at every step"
    for line in (
        f"With an update {period}. After a half-life half of the past is left; a window is 1 / (1 - decay) updates, "
        "what an average remembers; the warm-up holds a decay below (t + 1) / (t + 10).",
        f"In Python: EMABank(model, [{rules}], every={asked.every})",
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _near_one(decay: float) -> str:
    """With three digits of what is missing to 1."""
    return f"{decay:.3g}" if decay in (0, 1) else f"{decay:.{2 - math.floor(math.log10(1 - decay))}f}"


def _steps(value: float) -> str:
    return "never ends" if value == math.inf else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _epochs(value: float) -> str:
    return "" if value == math.inf else f"{value:,.1f}" if value >= 1 else f"{value:.2g}"
