"""What an update costs relative to a training step, timed right after a real one.

Run `python benchmarks/overhead.py --help`; benchmarks/README.md explains the numbers.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `python benchmarks/overhead.py`

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.harness import (
    Case,
    Run,
    case_text,
    count_of,
    free_memory,
    make_case,
    make_parser,
    run_interleaved,
    show_progress,
    start,
    write_result,
)
from benchmarks.models import GPT, NAMES, build
from benchmarks.peers import EXACT, Packages, Peer, make_bank, versions
from benchmarks.update import add_peer_arguments, build_peers, chosen_peers, plan_groups
from emabank.study.bench import BANK, Contestant, averaged_tensors

STEP = "training step"
PERIOD = 16  # optimizer steps between two updates in the paper
BATCH, TOKENS = 128, 64
TRAINABLE = [name for name in NAMES if not name.startswith("small")]  # a stack of 500 layers diverges
CASES = ["resnet20:5", "resnet18:5", "gpt124m:1", "gpt124m:5"]


def training_step(model: nn.Module) -> tuple[Callable[[], None], str]:
    """A step on random data, and a description of it."""
    dtype = next(model.parameters()).dtype
    if isinstance(model, GPT):
        inputs = torch.randint(model.tokens.num_embeddings, (1, TOKENS))
        targets = inputs.flatten()
        # The fastest optimizer there is for it: a slower one would make the averages look cheaper.
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        words = f"1 × {TOKENS} tokens, AdamW"
    else:
        inputs, targets = torch.randn(BATCH, 3, 32, 32, dtype=dtype), torch.randint(10, (BATCH,))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4)
        words = f"{BATCH} inputs of 3 × 32 × 32, SGD with momentum"

    def step() -> None:
        F.cross_entropy(model(inputs).flatten(0, -2), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, words


def measure(name: str, averages: int, peers: Sequence[Peer], packages: Packages, *, seconds: float) -> Case:
    """Time the update of every contestant right after a training step, and the step itself."""
    model = build(name)
    step, words = training_step(model)
    step()  # so that gradients and optimizer state exist before memory is looked at
    size = 4 * averages * sum(tensor.numel() for tensor in averaged_tensors(model))
    _, groups = plan_groups(size, peers, free_memory())
    missing: dict[str, str] = {} if groups else {peer.name: "does not fit into memory" for peer in peers}
    runs: list[Run] = []
    title = f"{name}, {count_of(averages, 'average')}, step on {words}"
    for group in groups or [[]]:
        bank = replace(make_bank(EXACT, model, averages), name=BANK)  # as a user builds it
        contestants = [bank, *build_peers(group, packages, model, averages, missing)]
        contestants = [
            Contestant(STEP, step, list(model.parameters())),
            *(replace(c, before=step) for c in contestants),
        ]
        runs.append(run_interleaved(contestants, seconds=seconds / max(1, len(groups)), progress=show_progress(title)))
        del contestants
        gc.collect()
    about = {"model": name, "averages": averages, "step": words}
    return make_case(title, runs, over=(STEP,), better={BANK: "lower"}, about=about, missing=missing)


def parse_case(text: str) -> tuple[str, int]:
    """`resnet20:5` is ResNet-20 with five averages."""
    name, _, averages = text.partition(":")
    if name not in TRAINABLE or not averages.isdecimal() or int(averages) < 1:
        known = ", ".join(TRAINABLE)
        raise argparse.ArgumentTypeError(f"case must be MODEL:AVERAGES with a model of {known}; got {text}")
    return name, int(averages)


def main(words: Sequence[str] | None = None) -> int:
    parser = make_parser(
        "Time the update of all averages right after a real training step, and the step.",
        "Default: four cases, about 20 minutes on two cores, most of it steps of the transformer.",
        seconds=60,
        result="overhead.json",
    )
    parser.add_argument("--cases", nargs="+", type=parse_case, default=[*map(parse_case, CASES)], metavar="MODEL:M",
                        help=f"(default: {' '.join(CASES)})")  # fmt: skip
    add_peer_arguments(parser)
    arguments = parser.parse_args(words)
    peers, packages = chosen_peers(arguments), Packages(arguments.wheels)
    known = start(arguments, versions=versions(packages, peers))
    cases: list[Case] = []
    for name, averages in arguments.cases:
        case = measure(name, averages, peers, packages, seconds=arguments.seconds)
        cases.append(case)
        share = next(row.over[STEP].median for row in case.rows if row.name == BANK)
        print(case_text(case))
        print(f"emabank: {share:.3%} of a step; {share / PERIOD:.4%} with an update every {PERIOD} steps", end="\n\n")
    if arguments.json:
        write_result(arguments.json, known, cases, add=arguments.add)
    return 0


if __name__ == "__main__":
    sys.exit(main())
