"""One update of all averages, timed: the memory limit, emabank and its peers in one interleaved run for each case."""

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from emabank import EMABank
from emabank.bench import peers, zoo
from emabank.bench.cases import Case, Row, rows_of, title
from emabank.bench.interleave import Contestant, Run, run_interleaved
from emabank.bench.machine import CPU, available_bytes, settled
from emabank.bench.not_due import NotDue, measure

MEMORY_SHARE = 0.7  # of what is free; the rest is for temporaries, of which some peers make as much as an average
NO_ROOM = "does not fit into memory beside emabank's averages"


def progress(what: str) -> Callable[[str], None]:
    """Says how far a case is: on one line where somebody watches, once where it goes to a file; nothing ends it."""
    shown = False

    def show(line: str) -> None:
        nonlocal shown
        if sys.stderr.isatty():
            print("\r\033[K" + (f"{what}: {line}" if line else ""), end="", file=sys.stderr, flush=True)
        elif not shown:
            print(f"{what} ...", file=sys.stderr, flush=True)
        shown = True

    return show


@dataclass(frozen=True)
class Lineup:
    """Who runs together where not all fit into memory at once.

    Args:
        ours: of emabank, in every run.
        runs: the peers of each run.
        missing: peers that fit into none, and why.
    """

    ours: Sequence[str]
    runs: Sequence[Sequence[peers.Peer]]
    missing: Mapping[str, str]


def lineup(model: nn.Module, averages: int, chosen: Sequence[peers.Peer], ours: Sequence[str]) -> Lineup:
    """As few runs as memory allows; where it is short, fewer of our own rows, and in the end no peers."""
    tensors = zoo.averaged_tensors(model)
    one, free = averages * sum(tensor.numel() * 4 for tensor in tensors), available_bytes(tensors[0].device)
    room = 1000 if free is None else max(1, int((free * MEMORY_SHARE - 4 * peers.LIMIT_ELEMENTS) / one))
    ours = ours[: max(1, min(room - 1, len(ours)))]
    size = room - len(ours)
    if size < 1:
        return Lineup(ours, [()], {peer.name: NO_ROOM for peer in chosen})
    return Lineup(ours, [chosen[at : at + size] for at in range(0, len(chosen), size)] or [()], {})


def run_case(
    name: str,
    averages: int,
    chosen: Sequence[peers.Peer],
    *,
    seconds: float,
    device: torch.device = CPU,
    neighbour: str | None = None,
    beside: Callable[[], AbstractContextManager[int | None]] = nullcontext,
) -> Case:
    """Measure one model with one number of averages.

    Args:
        chosen: who takes part beside the limit and emabank.
        neighbour: the kind of process that is meant to be busy meanwhile.
        beside: starts it and gives its pid, for the length of a block.
    """
    model = zoo.build(name).to(device)
    planned = lineup(model, averages, chosen, peers.OURS)
    missing = dict(planned.missing)
    show = progress(title(name, averages) + (f", busy neighbour ({neighbour})" if neighbour else ""))
    groups: list[Run] = []
    for run in planned.runs:
        field = [peers.memory_limit(model, averages)]
        field += [peers.emabank_bank(model, averages, bank) for bank in planned.ours]
        field += taking_part(run, model, averages, missing)
        with beside() as pid:
            share = seconds / len(planned.runs)
            groups.append(run_interleaved(field, seconds=share, neighbour=pid, progress=show, settle=settled(device)))
        del field
        gc.collect()
    return case_of(name, averages, model, groups, rows_of([group.times for group in groups]), missing, neighbour)


def taking_part(
    chosen: Sequence[peers.Peer], model: nn.Module, averages: int, missing: dict[str, str]
) -> list[Contestant]:
    """Those peers that are there; the others are added to `missing`, with the reason."""
    found: list[Contestant] = []
    for peer in chosen:
        try:
            found.append(peer.build(model, averages))
        except peers.NotAvailable as error:
            missing[peer.name] = str(error)
    return found


def case_of(
    name: str,
    averages: int,
    model: nn.Module,
    groups: Sequence[Run],
    rows: Sequence[Row],
    missing: Mapping[str, str],
    neighbour: str | None = None,
) -> Case:
    """What interleaved runs over one model come to."""
    tensors = zoo.averaged_tensors(model)
    return Case(
        model=name,
        averages=averages,
        elements=sum(tensor.numel() for tensor in tensors),
        tensors=len(tensors),
        rounds=sum(len(next(iter(group.times.values()))) for group in groups),
        dropped=sum(group.dropped for group in groups),
        neighbour=neighbour,
        bystanders=max((group.bystanders for group in groups if group.bystanders is not None), default=None),
        rows=rows,
        missing=missing,
    )


def measure_not_due() -> NotDue:
    """What a step costs on which no average is due."""
    bank = EMABank(zoo.build("small1000"), list(peers.DECAYS), every=10**9)
    return measure(bank.update)
