"""What averages cost of a training step: each contestant's update right after a step, timed in place, beside the step.

All train the same model, one step each in turn, so that an update finds the caches as training leaves them.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emabank.bench import peers, zoo
from emabank.bench.cases import Case, title
from emabank.bench.interleave import Contestant, Run, Spread, paired_ratio, run_interleaved, spread
from emabank.bench.machine import CPU, settled
from emabank.bench.tables import percent, surroundings, table, with_spread
from emabank.bench.update import case_of, lineup, progress, taking_part

STEP = "training step"
PERIOD = 16  # optimizer steps from one update to the next in the paper
BATCH, TOKENS = 128, 64


@dataclass(frozen=True)
class Share:
    """The update of one contestant: its time, and its time over that of a training step, round by round."""

    name: str
    milliseconds: Spread
    of_step: Spread


@dataclass(frozen=True)
class Steps:
    """What updates cost of a training step of one model.

    Args:
        case: the model, the rounds, who is missing and what else the machine did; without rows.
        batch: what a step is made on, in words.
        step: its milliseconds.
        shares: emabank first, then the peers by what they cost.
    """

    case: Case
    batch: str
    step: Spread
    shares: Sequence[Share]

    def share(self, name: str) -> Share:
        """That of one contestant."""
        return next(share for share in self.shares if share.name == name)


def training_step(model: nn.Module, *, batch: int | None = None) -> tuple[Callable[[], None], str]:
    """A step on random data, with the optimizer that such a model is trained with, and in words what it is made on."""
    first = next(model.parameters())
    device, dtype = first.device, first.dtype
    if isinstance(model, zoo.GPT):
        rows = batch or 1
        inputs = torch.randint(model.tokens.num_embeddings, (rows, TOKENS), device=device)
        # Fused is the quickest there is: no optimizer makes the share of the averages look small.
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        return _stepping(model, optimizer, inputs, inputs.flatten()), f"{rows} × {TOKENS} tokens, AdamW"
    rows = batch or BATCH
    shape, classes, words = ((3, 32, 32), 10, "images of CIFAR's size")
    if isinstance(model, nn.Sequential):
        shape, classes, words = ((16,), 16, "rows of 16 numbers")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4)
    inputs = torch.randn(rows, *shape, device=device, dtype=dtype)
    targets = torch.randint(classes, (rows,), device=device)
    return _stepping(model, optimizer, inputs, targets), f"{rows} {words}, SGD with momentum"


def _stepping(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor
) -> Callable[[], None]:
    def step() -> None:
        F.cross_entropy(model(inputs).flatten(0, -2), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure_steps(
    name: str,
    averages: int,
    chosen: Sequence[peers.Peer],
    *,
    seconds: float,
    batch: int | None = None,
    device: torch.device = CPU,
) -> Steps:
    """Measure one model with one number of averages, updated at every step."""
    model = zoo.build(name).to(device)
    step, words = training_step(model, batch=batch)
    step()  # so that gradients and the optimizer's state are there before memory is looked at
    planned = lineup(model, averages, chosen, (peers.BANK,))
    missing = dict(planned.missing)
    show = progress(f"training steps, {title(name, averages)}")
    groups: list[Run] = []
    for run in planned.runs:
        field = [peers.emabank_bank(model, averages), *taking_part(run, model, averages, missing)]
        field = [Contestant(STEP, step, list(model.parameters())), *(replace(each, before=step) for each in field)]
        share = seconds / len(planned.runs)
        groups.append(run_interleaved(field, seconds=share, progress=show, settle=settled(device)))
        del field
        gc.collect()
    step_seconds, shares = shares_of([group.times for group in groups])
    return Steps(case_of(name, averages, model, groups, (), missing), words, step_seconds, shares)


def shares_of(groups: Sequence[Mapping[str, list[float]]]) -> tuple[Spread, list[Share]]:
    """The step's milliseconds and everybody's share, each within the runs that it took part in."""
    shares: list[Share] = []
    for name in dict.fromkeys(name for times in groups for name in times if name != STEP):
        runs = [times for times in groups if name in times]
        own = [second for times in runs for second in times[name]]
        steps = [second for times in runs for second in times[STEP]]
        shares.append(Share(name, spread([1e3 * second for second in own]), paired_ratio(own, steps)))
    shares.sort(key=lambda share: (share.name != peers.BANK, share.of_step.median))
    return spread([1e3 * second for times in groups for second in times[STEP]]), shares


def steps_table(steps: Steps) -> str:
    """The shares, with an update at every step and, as the paper has it, at every 16th."""
    case = steps.case
    rows = [
        [
            share.name,
            with_spread(share.milliseconds),
            percent(share.of_step),
            percent(share.of_step, PERIOD),
        ]
        for share in steps.shares
    ]
    heading = (
        f"{title(case.model, case.averages)}: a training step on {steps.batch} takes {with_spread(steps.step)} ms; "
        f"{case.rounds} rounds; {surroundings(case)}"
    )
    missing = [f"  {name}: {reason}" for name, reason in case.missing.items()]
    header = ["an update", "ms: median (10–90 %)", "of a step, at every step", f"at every {PERIOD}th"]
    return "\n".join([heading, table(header, rows), *missing])
