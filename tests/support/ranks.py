"""One function in several real processes with a gloo group, forked from one that has imported torch."""

import io
import multiprocessing
import os
import queue
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

PRELOADED = ["torch.distributed.fsdp", "torch.distributed.checkpoint", "emabank"]
FSDP = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7),
    reason="FSDP2 of torch 2.6 has no forward pass on CPUs: it asks their streams for events",
)


def run_on_ranks(
    function: Callable[..., Any], *arguments: Any, folder: Path, world: int = 2, seconds: float = 120
) -> list[Any]:
    """The results of `function(*arguments)` on `world` processes, by rank; fails if one of them raises.

    The function must be importable by its name, so it is in a file of `on_ranks`. `folder` must be empty.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    answers = context.Queue()
    store = folder / "store"
    ranks = [
        context.Process(target=_rank, args=(rank, world, str(store), answers, function, arguments), daemon=True)
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    results: dict[int, Any] = {}
    until = time.monotonic() + seconds
    try:
        while len(results) < world:
            try:
                rank, failed, answer = answers.get(timeout=0.2)
            except queue.Empty:
                dead = [rank for rank, process in enumerate(ranks) if process.exitcode and rank not in results]
                assert not dead, f"rank {dead[0]} has died with exit code {ranks[dead[0]].exitcode}"
                assert time.monotonic() < until, f"of {world} ranks only {sorted(results)} ended within {seconds} s"
                continue
            assert not failed, f"on rank {rank}:\n{answer}"
            results[rank] = torch.load(io.BytesIO(answer), weights_only=False)
    finally:
        for process in ranks:
            process.join(5 if len(results) == world else 0)
            if process.is_alive():
                process.kill()
                process.join()
    return [results[rank] for rank in range(world)]


def _rank(rank: int, world: int, store: str, answers: Any, function: Callable[..., Any], arguments: Any) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
        content = io.BytesIO()  # tensors by value: a process that has ended cannot share its memory
        torch.save(function(*arguments), content)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        answers.put((rank, True, traceback.format_exc()))
    else:
        answers.put((rank, False, content.getvalue()))
