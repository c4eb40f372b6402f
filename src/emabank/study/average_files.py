"""The command `emabank average`: finds checkpoints, averages them with `emabank.averaging`, and prints a summary."""

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from emabank.averaging import (
    AveragePlan,
    average_checkpoints,
    ema_weights,
    find_checkpoints,
    last_weights,
    normalized_weights,
    plan_average,
    sort_checkpoints,
    uniform_weights,
)
from emabank.study.executors.progress import counting
from emabank.study.own_arguments import AverageArguments

_SHOWN = 10  # checkpoints at the beginning and at the end of a long list
_MB = 10**6


def average_files(arguments: AverageArguments, *, console: Console | None = None) -> None:
    """Average checkpoints and print what was done; `ValueError` if they do not match."""
    console = console or Console()
    listed = find_checkpoints(arguments.checkpoints)
    paths = listed.checkpoints
    if len(paths) < 2:
        raise ValueError(f"an average needs two checkpoints or more; got {', '.join(map(str, paths)) or 'none'}")
    weights = _weights(arguments, len(paths))
    _show_weights(paths, weights, console)
    for path in listed.left_out:
        _say(console, f"Left out: {path}. It has no number, so its position is unknown; name it to include it.")
    order_matters = len(set(weights)) > 1
    if order_matters and list(paths) != sort_checkpoints(paths) and len(arguments.checkpoints) == len(paths):
        _say(console, "Your order is kept. It is not the order of the numbers: a shell sorts 1000 before 500.")
    if arguments.dry_run or arguments.out is None:
        plan = plan_average(paths, weights, out=arguments.out, key=arguments.key, replace_out=arguments.force)
        _show_plan(plan, console)
        _say(console, "The checkpoints match. Nothing was written.")
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
    _say(console, f"Written: {arguments.out}")


def _weights(arguments: AverageArguments, count: int) -> list[float]:
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


def _show_plan(plan: AveragePlan, console: Console) -> None:
    """Print how many tensors are averaged and copied, and warnings."""
    under = f" under {plan.key!r}" if plan.key else ""
    copied = f"; {len(plan.copied)} copied from {plan.checkpoints[-1][0].name}" if plan.copied else ""
    _say(
        console,
        f"Tensors{under}: {len(plan.averaged)} averaged in float64 and rounded once{copied}. "
        f"{plan.nbytes / _MB:,.1f} MB per checkpoint.",
    )
    if plan.batchnorm:
        _say(
            console,
            f"Warning: {len(plan.batchnorm)} averaged tensors are batch-norm statistics ({plan.batchnorm[0]}), which "
            "now fit no network. Recalibrate them on training data: emabank.recalibrate_batchnorm(model, loader).",
        )
    if plan.differing:
        names = ", ".join(plan.differing[:3])
        _say(
            console,
            f"Warning: {len(plan.differing)} integer tensors differ between checkpoints ({names}). If they are "
            "quantized weights, the result is not an average.",
        )
    for path in plan.in_memory:
        _say(
            console,
            f"Warning: {path} was loaded completely; it is in torch's format from before 1.6, or compressed.",
        )


def _say(console: Console, sentence: str) -> None:
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)
