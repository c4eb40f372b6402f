"""The command `average`: finds checkpoints, averages them with `emabank.averaging`, and prints a summary."""

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from emabank.rules import DecayControl, DecayShape, decay_merge_weights
from emabank.study.config import check_at_least
from emabank.study.executors.progress import counting, say

if TYPE_CHECKING:
    from emabank.averaging import AveragePlan

_SHOWN = 10  # checkpoints at the beginning and at the end of a long list
_MB = 10**6
_CHECKPOINTS = tyro.conf.arg(metavar="CHECKPOINT [CHECKPOINT ...]", help_behavior_hint="")


@dataclass(frozen=True, kw_only=True)
class AverageArguments:
    """Average existing checkpoints into one, in the layout of the last one.

    Reads safetensors and torch files, checkpoints of Lightning and timm, folders of Hugging Face, and folders of
    torch.distributed.checkpoint. By default all checkpoints have the same weight. Values are read in chunks, so even
    the largest checkpoints need little memory.
    """

    checkpoints: Annotated[tyro.conf.Positional[tuple[Path, ...]], _CHECKPOINTS]
    """Files or folders, in order. A folder of checkpoints means all of them, sorted by number."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",), help_behavior_hint="")] = None
    """Where to write the average: a file if the checkpoints are files, a folder if they are folders."""
    decay: float | None = None
    """Exponential moving average: weigh a checkpoint by this factor, from 0 to below 1, relative to the next one."""
    last: int | None = None
    """Average only the last INT checkpoints (LAWA). By default all."""
    weights: tuple[float, ...] = ()
    """One weight per checkpoint, relative to each other. By default all are equal."""
    like_decay: DecayShape | None = None
    """Merge checkpoints of a constant-rate run into the model after a decay of this shape. File names need steps."""
    window: int | None = None
    """With --like-decay: the steps of the decay. By default from the first checkpoint to the last."""
    min_interval: int = 1
    """With --like-decay: use checkpoints at least this many steps apart."""
    control: DecayControl | None = None
    """With --like-decay: a control experiment with the same weights in another order, which should be worse."""
    best: int | None = None
    """Average only the INT checkpoints with the best --metric."""
    metric: str = "metric"
    """With --best: the name of a number in the file (timm: metric) or in its name (val_acc=0.91)."""
    lowest: bool = False
    """With --best: the lowest metric is best, as for a loss."""
    greedy: str | None = None
    """Greedy soup: keep a checkpoint only if it improves the last number this command prints; {} becomes a path."""
    key: str | None = None
    """Key of the state dict in torch files. By default it is detected (state_dict, model, ...)."""
    force: bool = False
    """Replace an existing file or folder."""
    dry_run: bool = False
    """Show what would be merged with which weights and how much memory it takes; write nothing."""

    def __post_init__(self) -> None:
        if not self.checkpoints:
            raise ValueError("name two checkpoints or more, or a folder of them")
        if self.out is None and not self.dry_run:
            raise ValueError("name the output with -o PATH, or use --dry-run to look first")
        options = ("decay", "last", "weights", "like_decay", "best", "greedy")
        used = [f"--{name.replace('_', '-')}" for name in options if getattr(self, name) not in (None, ())]
        if len(used) > 1:
            raise ValueError(f"{' and '.join(used)} exclude each other; choose one, or none for the plain mean")
        if self.like_decay is None and (self.window is not None or self.control is not None or self.min_interval != 1):
            raise ValueError("--window, --min-interval and --control need --like-decay")
        if self.best is None and (self.metric != "metric" or self.lowest):
            raise ValueError("--metric and --lowest need --best")
        if self.greedy is not None and ("{}" not in self.greedy or self.dry_run):
            raise ValueError(
                "--greedy must be a command with {} for the path, such as 'python validate.py {}', without --dry-run"
            )
        for name in ("last", "best", "window", "min_interval"):
            check_at_least(name, getattr(self, name), 1)

    def run(self, words: list[str]) -> None:
        average_files(self)


def average_files(arguments: AverageArguments, *, console: Console | None = None) -> None:
    """Average checkpoints and print a summary; `ValueError` if they do not match."""
    from emabank.averaging import average_checkpoints, find_checkpoints, plan_average, sort_checkpoints

    console = console or Console()
    listed = find_checkpoints(arguments.checkpoints)
    paths, weights = _paths_and_weights(arguments, listed.checkpoints)
    if len(paths) < 2:
        window = "" if arguments.window is None else f" in a --window of {arguments.window} training steps"
        raise ValueError(
            f"an average needs two checkpoints or more; got {', '.join(map(str, paths)) or 'none'}{window}"
        )
    for path in listed.skipped:
        say(console, f"Skipped: {path}. It has no number, so its position is unknown; name it to include it.")
    if arguments.greedy is not None:
        _cook(arguments, paths, console)
        return
    _show_weights(paths, weights, console)
    is_sorted = arguments.like_decay is not None or list(paths) == sort_checkpoints(paths)
    if len(set(weights)) > 1 and not is_sorted and len(arguments.checkpoints) == len(paths):
        say(console, "Checkpoints stay in your order. Their numbers are not in order: a shell sorts 1000 before 500.")
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


def _paths_and_weights(arguments: AverageArguments, paths: Sequence[Path]) -> tuple[Sequence[Path], list[float]]:
    from emabank import averaging

    if arguments.like_decay is not None:
        paths = averaging.recent_checkpoints(paths, arguments.window, arguments.min_interval)
        steps = [averaging.checkpoint_step(path) for path in paths]
        return paths, decay_merge_weights(steps, arguments.like_decay, control=arguments.control)
    if arguments.best is not None:
        paths = averaging.best_checkpoints(paths, arguments.best, arguments.metric, lowest=arguments.lowest)
    if arguments.decay is not None:
        return paths, averaging.ema_weights(len(paths), arguments.decay)
    if arguments.last is not None:
        return paths, averaging.last_weights(len(paths), arguments.last)
    if arguments.weights:
        return paths, averaging.normalized_weights(len(paths), arguments.weights)
    return paths, averaging.uniform_weights(len(paths))


def _cook(arguments: AverageArguments, paths: Sequence[Path], console: Console) -> None:
    """Write a greedy soup, using the scores that the user's command prints."""
    from emabank.averaging import greedy_soup

    try:
        command = shlex.split(arguments.greedy or "")
    except ValueError as error:
        raise ValueError(f"--greedy must be a command; got {arguments.greedy!r} ({error})") from None

    def score(path: Path) -> float:
        words = [word.replace("{}", str(path)) for word in command]
        process = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
        try:
            if process.returncode:
                raise ValueError(f"it ended with exit code {process.returncode}")
            return float(process.stdout.split()[-1])
        except (ValueError, IndexError) as error:
            raise ValueError(
                f"--greedy must be a command that prints a score as its last word; {shlex.join(words)}: {error}"
            ) from None

    def report(path: Path, value: float, is_added: bool) -> None:
        say(console, f"{'Added' if is_added else 'Not added'}: {path}; the score with it is {value:.6g}.")

    assert arguments.out is not None  # only a dry run has none
    plan = greedy_soup(paths, arguments.out, score, key=arguments.key, replace_out=arguments.force, report=report)
    _show_plan(plan, console)
    say(console, f"Written: {arguments.out}, the mean of {len(plan.checkpoints)}")


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
        f"{plan.nbytes / _MB:,.1f} MB per checkpoint. Peak memory: {plan.memory / _MB:,.0f} MB and torch itself.",
    )
    if plan.others:
        say(
            console,
            f"Warning: {', '.join(map(repr, plan.others))} is not averaged and still that of the last checkpoint. Load "
            f"{plan.key!r}. timm prefers an EMA, unless use_ema=False.",
        )
    if plan.batchnorm:
        say(
            console,
            f"Warning: {len(plan.batchnorm)} averaged tensors are batch-norm statistics, such as {plan.batchnorm[0]}. "
            "They now fit no network. Recalibrate them on training data: emabank.recalibrate_batchnorm(model, loader).",
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
