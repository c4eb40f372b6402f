"""From `emabank average` to a checkpoint: which ones are meant, how much each counts, what came of it.

Prints; the work is done by the library's averaging.
"""

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from emabank.averaging import (
    Fit,
    average_checkpoints,
    ema_shares,
    find_checkpoints,
    fit_together,
    given_shares,
    in_order,
    last_shares,
    uniform_shares,
)
from emabank.study.own_arguments import AverageArguments
from emabank.study.progress import counting

_SHOWN = 10  # checkpoints at the beginning and at the end of a long sequence
_MB = 10**6


def average_files(asked: AverageArguments, *, console: Console | None = None) -> None:
    """Average what is asked for, and print of what, how, and what to mind; `ValueError` where it does not fit."""
    console = console or Console()
    found = find_checkpoints(asked.checkpoints)
    paths = found.checkpoints
    if len(paths) < 2:
        raise ValueError(f"{', '.join(map(str, paths))} is the only checkpoint there; an average needs two or more")
    shares = _shares(asked, len(paths))
    _show_order(paths, shares, console)
    for path in found.left_out:
        _say(console, f"Left out: {path}; without a number its place is unknown. Name it to have it in.")
    counts_by_place = len(set(shares)) > 1  # to a plain mean the order is all one
    if counts_by_place and list(paths) != in_order(paths) and len(asked.checkpoints) == len(paths):
        _say(console, "They stay in the order given, which is not that of their numbers (a shell has 1000 before 500).")
    if asked.dry_run or asked.out is None:
        _tell(fit_together(paths, shares, out=asked.out, key=asked.key, replace_out=asked.force), console)
        _say(console, "They fit together. Nothing was written.")
        return
    with counting(console, "MB averaged") as tell:
        made = average_checkpoints(
            paths,
            asked.out,
            shares,
            key=asked.key,
            replace_out=asked.force,
            tell=lambda done, total: tell(-(-done // _MB), -(-total // _MB)),
        )
    _tell(made, console)
    _say(console, f"Written: {asked.out}")


def _shares(asked: AverageArguments, count: int) -> list[float]:
    if asked.decay is not None:
        return ema_shares(count, asked.decay)
    if asked.last is not None:
        return last_shares(count, asked.last)
    return given_shares(count, asked.weights) if asked.weights else uniform_shares(count)


def _show_order(paths: Sequence[Path], shares: Sequence[float], console: Console) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("", justify="right")
    table.add_column("checkpoint", overflow="fold")
    table.add_column("share", justify="right", no_wrap=True)
    for place, (path, share) in enumerate(zip(paths, shares, strict=True)):
        if place < _SHOWN or place >= len(paths) - _SHOWN:
            table.add_row(str(place + 1), Text(str(path)), f"{100 * share:.4g}%" if share else "-")
        elif place == _SHOWN:
            table.add_row("", f"and {len(paths) - 2 * _SHOWN} more", "")
    console.print(table)


def _tell(fit: Fit, console: Console) -> None:
    """Say what becomes of the tensors, and what to mind."""
    last = fit.checkpoints[-1][0]
    inside = f" under {fit.key!r}" if fit.key else ""
    copied = f"; other tensors, {len(fit.copied)}, come from {last.name}" if fit.copied else ""
    _say(
        console,
        f"Floating tensors{inside}, {len(fit.averaged)}, are averaged in float64 and rounded once{copied}. "
        f"{fit.nbytes / _MB:,.1f} MB a checkpoint.",
    )
    if fit.batchnorm:
        _say(
            console,
            f"Mind: {len(fit.batchnorm)} of them are batch-norm statistics ({fit.batchnorm[0]}). Averaged, they are "
            "those of no network; recalibrate them on training data: emabank.recalibrate_batchnorm(model, loader).",
        )
    names = ", ".join(fit.differing[:3])
    if fit.differing:
        _say(
            console,
            f"Mind: whole numbers differ between the checkpoints ({names}: {len(fit.differing)}); "
            "if they are quantised weights, this is no average.",
        )
    for path in fit.in_memory:
        _say(
            console, f"Mind: {path} cannot be read in pieces (torch's older format, or packed); it is in memory whole."
        )


def _say(console: Console, sentence: str) -> None:
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)
