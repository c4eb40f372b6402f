"""The command `average`: finds checkpoints, averages them with `emabank.averaging`, and prints a summary."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from emabank.study.config import check_at_least
from emabank.study.executors.progress import counting, say

if TYPE_CHECKING:
    from emabank.averaging import AveragePlan

_SHOWN = 10  # checkpoints at the beginning and at the end of a long list
_MB = 10**6


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

    def run(self, words: list[str]) -> None:
        average_files(self)


def average_files(arguments: AverageArguments, *, console: Console | None = None) -> None:
    """Average checkpoints and print what was done; `ValueError` if they do not match."""
    from emabank.averaging import average_checkpoints, find_checkpoints, plan_average, sort_checkpoints

    console = console or Console()
    listed = find_checkpoints(arguments.checkpoints)
    paths = listed.checkpoints
    if len(paths) < 2:
        raise ValueError(f"an average needs two checkpoints or more; got {', '.join(map(str, paths)) or 'none'}")
    weights = _weights(arguments, len(paths))
    _show_weights(paths, weights, console)
    for path in listed.left_out:
        say(console, f"Left out: {path}. It has no number, so its position is unknown; name it to include it.")
    order_matters = len(set(weights)) > 1
    if order_matters and list(paths) != sort_checkpoints(paths) and len(arguments.checkpoints) == len(paths):
        say(console, "Your order is kept. It is not the order of the numbers: a shell sorts 1000 before 500.")
    if arguments.dry_run or arguments.out is None:
        plan = plan_average(paths, weights, out=arguments.out, key=arguments.key, replace_out=arguments.force)
        _show_plan(plan, console)
        say(console, "The checkpoints match. Nothing was written.")
        return
    with counting(console, "MB averaged") as progress:
        plan = average_checkpoints(
            paths,
            arguments.out,
            weights,
            key=arguments.key,
            replace_out=arguments.force,
            progress=lambda done, total: progress(-(-done // _MB), -(-total // _MB)),
        )
    _show_plan(plan, console)
    say(console, f"Written: {arguments.out}")


def _weights(arguments: AverageArguments, count: int) -> list[float]:
    from emabank.averaging import ema_weights, last_weights, normalized_weights, uniform_weights

    if arguments.decay is not None:
        return ema_weights(count, arguments.decay)
    if arguments.last is not None:
        return last_weights(count, arguments.last)
    return normalized_weights(count, arguments.weights) if arguments.weights else uniform_weights(count)


def _show_weights(paths: Sequence[Path], weights: Sequence[float], console: Console) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("", justify="right")
    table.add_column("checkpoint", overflow="fold")
    table.add_column("weight", justify="right", no_wrap=True)
    for position, (path, weight) in enumerate(zip(paths, weights, strict=True)):
        if position < _SHOWN or position >= len(paths) - _SHOWN:
            table.add_row(str(position + 1), Text(str(path)), f"{100 * weight:.4g}%" if weight else "-")
        elif position == _SHOWN:
            table.add_row("", f"and {len(paths) - 2 * _SHOWN} more", "")
    console.print(table)


def _show_plan(plan: "AveragePlan", console: Console) -> None:
    """Print how many tensors are averaged and copied, and warnings."""
    under = f" under {plan.key!r}" if plan.key else ""
    copied = f"; {len(plan.copied)} copied from {plan.checkpoints[-1][0].name}" if plan.copied else ""
    say(
        console,
        f"Tensors{under}: {len(plan.averaged)} averaged in float64 and rounded once{copied}. "
        f"{plan.nbytes / _MB:,.1f} MB per checkpoint.",
    )
    if plan.batchnorm:
        say(
            console,
            f"Warning: {len(plan.batchnorm)} averaged tensors are batch-norm statistics ({plan.batchnorm[0]}), which "
            "now fit no network. Recalibrate them on training data: emabank.recalibrate_batchnorm(model, loader).",
        )
    if plan.differing:
        names = ", ".join(plan.differing[:3])
        say(
            console,
            f"Warning: {len(plan.differing)} integer tensors differ between checkpoints ({names}). If they are "
            "quantized weights, the result is not an average.",
        )
    for path in plan.in_memory:
        say(
            console,
            f"Warning: {path} was loaded completely; it is in torch's format from before 1.6, or compressed.",
        )
