"""The goals, as data, and whether a measurement meets them. Pure functions of results: nothing is timed here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emabank.bench.cases import Case, Verdict, slowdown, title
from emabank.bench.not_due import NotDue
from emabank.bench.peers import BANK, CONTROL, LIMIT
from emabank.bench.steps import PERIOD, Steps

TIE = 0.98  # two identical banks differ by 2 to 5 % in one run (see the control row): closer than this is a tie
NO_CLIFF = 3.0  # times the limit's own slowdown; without care it was 170 (traps.md, 64)
NOT_DUE_NANOSECONDS = 1000
COUNTER_BYTES = 64  # Python makes the next integer before it drops the last: one counter, or two, at a time


@dataclass(frozen=True)
class Goal:
    """What one case must show; None where nothing is asked."""

    at_most_of_limit: float | None = None
    at_least_faster: float | None = None


# Issue 5, point 1; with one average, at least as fast as the fastest peer everywhere.
GOALS: Mapping[tuple[str, int], Goal] = {
    ("resnet20", 5): Goal(at_least_faster=4.0),
    ("small1000", 5): Goal(at_least_faster=4.0),
    ("resnet18", 5): Goal(at_most_of_limit=1.1, at_least_faster=1.7),
    ("gpt124m", 5): Goal(at_most_of_limit=1.1, at_least_faster=1.5),
    ("resnet18", 20): Goal(at_most_of_limit=1.1),
    ("gpt124m", 20): Goal(at_most_of_limit=1.1),
    **{(model, 1): Goal(at_least_faster=1.0) for model in ("resnet20", "resnet18", "gpt124m", "small1000")},
}

# Issue 5, point 2: the share of a training step, where an update is made every so many steps.
SHARES: Mapping[tuple[str, int], tuple[int, float]] = {
    ("resnet20", 5): (PERIOD, 0.0005),
    ("resnet18", 5): (PERIOD, 0.0005),
    ("gpt124m", 1): (1, 0.08),
}


def _verdict(goal: str, passed: bool, found: str, *cases: Case) -> Verdict:
    return Verdict(goal, None if any(case.disturbed for case in cases) else passed, found)


def judge_case(case: Case) -> list[Verdict]:
    """Whether a quiet case meets its goals; a case without goals has no verdicts."""
    goal, bank, peer = GOALS.get((case.model, case.averages)), case.row(BANK), case.fastest_peer()
    if goal is None or bank is None or case.neighbour is not None:
        return []
    what = title(case.model, case.averages)
    found: list[Verdict] = []
    if (most := goal.at_most_of_limit) is not None:
        value = bank.of_limit.median
        found.append(_verdict(f"{what}: at most {most} × the limit", value <= most, f"{value:.3f} ×", case))
    if (least := goal.at_least_faster) is not None and peer is not None and peer.bank_faster is not None:
        value, tie = peer.bank_faster.median, least == 1.0
        text = "no slower than the fastest peer" if tie else f"at least {least} × faster than the fastest peer"
        met = value >= (TIE if tie else least)
        found.append(_verdict(f"{what}: {text}", met, f"{value:.3f} × ({peer.name})", case))
    return found


def judge_steps(steps: Steps) -> list[Verdict]:
    """Whether the averages cost no more of a training step than they may; a case without a goal has no verdict."""
    case = steps.case
    if (case.model, case.averages) not in SHARES:
        return []
    every, most = SHARES[case.model, case.averages]
    found = steps.share(BANK).of_step.median / every
    goal = (
        f"{title(case.model, case.averages)}, updated every {every} steps"
        if every > 1
        else (f"{title(case.model, case.averages)}, updated at every step")
    )
    return [_verdict(f"{goal}: at most {most:.2%} of a step on {steps.batch}", found <= most, f"{found:.4%}", case)]


def judge_not_due(cost: NotDue) -> list[Verdict]:
    """Whether a step that is not due is as good as free."""
    allocates_nothing = cost.kept_bytes <= COUNTER_BYTES and cost.transient_bytes <= COUNTER_BYTES
    return [
        Verdict(
            "update() that is not due: under 1 µs", cost.nanoseconds < NOT_DUE_NANOSECONDS, f"{cost.nanoseconds:.0f} ns"
        ),
        Verdict(
            "update() that is not due: no allocation",
            allocates_nothing and cost.operators == 0,
            f"{cost.kept_bytes} bytes kept after 10,000 calls, {cost.transient_bytes} bytes at most during one "
            f"(its step counter), {cost.operators} torch operators",
        ),
    ]


def judge_cliff(quiet: Case, busy: Case) -> list[Verdict]:
    """No cliff: beside a neighbour emabank grows by at most 3 × what the limit grows by, in the median and the mean.

    Every parallel region can lose a time slice to the neighbour, and the limit has two of them, so some growth is in
    the nature of the thing. The mean is judged too, because a training run pays for every update, the stalled ones
    included; emabank and its control are pooled for it, because a few stalls decide it.
    """
    bank, limit = slowdown(quiet, busy, BANK, CONTROL), slowdown(quiet, busy, LIMIT)
    if bank is None or limit is None:
        return []
    found = "; ".join(
        f"{name} {own:.2f} ×, limit {yardstick:.2f} ×"
        for name, own, yardstick in zip(("median", "mean"), bank, limit, strict=True)
    )
    met = all(own <= NO_CLIFF * max(1.0, yardstick) for own, yardstick in zip(bank, limit, strict=True))
    return [_verdict(f"{title(quiet.model, quiet.averages)}, busy neighbour: no cliff", met, found, quiet, busy)]
