"""The cost of an update relative to a training step, timed right after a real step.

Run `python benchmarks/overhead.py --help`; benchmarks/README.md explains the numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `python benchmarks/overhead.py`

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.harness import Case, case_text, count_of, make_case, make_parser, show_cases, start, write_result
from benchmarks.models import GPT, NAMES, build
from benchmarks.peers import EXACT, Peer, make_bank, peers_named, run_with_peers, versions
from emabank.study.bench import BANK, Contestant

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
        # The fastest optimizer available: a slower one would make the averages look cheaper.
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


def measure(name: str, averages: int, peers: Sequence[Peer], *, seconds: float) -> Case:
    """Time the update of every contestant right after a training step, and the step itself."""
    model = build(name)
    step, words = training_step(model)
    step()  # so that gradients and optimizer state exist before free memory is measured

    def ours(_: Sequence[str]) -> list[Contestant]:
        bank = replace(make_bank(EXACT, model, averages), name=BANK, before=step)  # as a user builds it
        return [Contestant(STEP, step, list(model.parameters())), bank]

    title = f"{name}, {count_of(averages, 'average')}, step on {words}"
    runs, missing = run_with_peers(title, model, averages, ours, peers, seconds=seconds, before=step)
    about = {"model": name, "averages": averages, "step": words}
    return make_case(title, runs, over=(STEP,), better={BANK: "lower"}, about=about, missing=missing)


def overhead_text(case: Case) -> str:
    """The case, and the bank's share of a step."""
    share = next(row.over[STEP].median for row in case.rows if row.name == BANK)
    return (
        f"{case_text(case)}\nemabank: {share:.3%} of a step; {share / PERIOD:.4%} with an update every {PERIOD} steps"
    )


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
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT",
                        help="only peers whose name contains one of these")  # fmt: skip
    arguments = parser.parse_args(words)
    peers = peers_named(arguments.only)
    known = start(arguments, versions=versions(peers))
    cases = (measure(*case, peers, seconds=arguments.seconds) for case in arguments.cases)
    write_result(arguments, known, show_cases(cases, overhead_text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
