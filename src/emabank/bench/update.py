"""One update of all averages, timed: the memory limit, emabank and its peers in one interleaved run for each case."""

import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import nn

from emabank import EMABank
from emabank.bench import peers, zoo
from emabank.bench.cases import Case, rows_of, title
from emabank.bench.interleave import Contestant, Run, run_interleaved
from emabank.bench.machine import available_bytes
from emabank.bench.not_due import NotDue, measure

MEMORY_SHARE = 0.7  # of what is free; the rest is for temporaries, of which some peers make as much as an average
NO_ROOM = "does not fit into memory beside emabank's averages"


def progress(what: str) -> Callable[[str], None]:
    """Says how far a case is: on one line where somebody watches, once where it goes to a file."""
    shown = False

    def show(line: str) -> None:
        nonlocal shown
        if sys.stderr.isatty():
            print(f"\r\033[K{what}: {line}", end="", file=sys.stderr, flush=True)
        elif not shown:
            print(f"{what} ...", file=sys.stderr, flush=True)
        shown = True

    return show


def fits(model: nn.Module, averages: int) -> int:
    """How many contestants with so many averages each fit into memory at once."""
    one = averages * sum(tensor.numel() * 4 for tensor in zoo.averaged_tensors(model))
    free = available_bytes()
    return 1000 if free is None else max(1, int((free * MEMORY_SHARE - 4 * peers.LIMIT_ELEMENTS) / one))


def run_case(
    name: str,
    averages: int,
    chosen: Sequence[peers.Peer],
    *,
    seconds: float,
    neighbour: str | None = None,
    beside: Callable[[], AbstractContextManager[int | None]] = nullcontext,
) -> Case:
    """Measure one model with one number of averages.

    Args:
        chosen: who takes part beside the limit and emabank; in several runs, where not all fit into memory at once.
        neighbour: the kind of process that is meant to be busy meanwhile.
        beside: starts it and gives its pid, for the length of a block.
    """
    model = zoo.build(name)
    room = fits(model, averages)
    ours = peers.OURS[: max(1, min(room - 1, len(peers.OURS)))]
    missing: dict[str, str] = {}
    if room <= len(ours):
        missing, chosen = {peer.name: NO_ROOM for peer in chosen}, ()
    size = max(1, room - len(ours))
    runs = max(1, -(-len(chosen) // size))
    show = progress(title(name, averages) + (f", busy neighbour ({neighbour})" if neighbour else ""))
    groups: list[Run] = []
    for run in range(runs):
        field = [peers.memory_limit(model, averages)]
        field += [peers.emabank_bank(model, averages, bank) for bank in ours]
        for peer in chosen[run * size : (run + 1) * size]:
            _enter(field, missing, peer, model, averages)
        with beside() as pid:
            groups.append(run_interleaved(field, seconds=seconds / runs, neighbour=pid, progress=show))
        del field
        gc.collect()
    tensors = zoo.averaged_tensors(model)
    return Case(
        model=name,
        averages=averages,
        elements=sum(tensor.numel() for tensor in tensors),
        tensors=len(tensors),
        rounds=sum(len(group.times[peers.LIMIT]) for group in groups),
        dropped=sum(group.dropped for group in groups),
        neighbour=neighbour,
        bystanders=max((group.bystanders for group in groups if group.bystanders is not None), default=None),
        rows=rows_of([group.times for group in groups]),
        missing=missing,
    )


def _enter(field: list[Contestant], missing: dict[str, str], peer: peers.Peer, model: nn.Module, averages: int) -> None:
    try:
        field.append(peer.build(model, averages))
    except peers.NotAvailable as error:
        missing[peer.name] = str(error)


def measure_not_due() -> NotDue:
    """What a step costs on which no average is due."""
    bank = EMABank(zoo.build("small1000"), list(peers.DECAYS), every=10**9)
    return measure(bank.update)
