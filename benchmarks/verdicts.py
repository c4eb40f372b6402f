"""The goals, as data, and whether a measurement meets them. Pure functions of results: nothing is timed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from interleave import Spread, paired_ratio, spread
from machine import QUIET_SHARE
from not_due import NotDue
from peers import BANK, CONTROL, LIMIT, OURS

TIE = 0.98  # two identical banks differ by 2 to 5 % in one run (see the control row): closer than this is a tie
NO_CLIFF = 3.0  # times the limit's own slowdown; without care it was 170 (traps.md, 64)
NOT_DUE_NANOSECONDS = 1000
COUNTER_BYTES = 64  # Python makes the next integer before it drops the last: one counter, or two, at a time


def title(model: str, averages: int) -> str:
    """How a case is called wherever it is printed."""
    return f"{model}, {averages} average{'s' if averages > 1 else ''}"


@dataclass(frozen=True)
class Row:
    """One contestant of one case.

    Args:
        milliseconds: of one update of all averages.
        of_limit: its time over the memory limit's, round by round.
        bank_faster: its time over that of the bank as a user builds it, round by round; None without emabank.
    """

    name: str
    milliseconds: Spread
    of_limit: Spread
    bank_faster: Spread | None


@dataclass(frozen=True)
class Case:
    """One model with one number of averages, measured in one interleaved run.

    Args:
        elements, tensors: what one average holds.
        rounds, dropped: counted, and left out because other processes were at work.
        neighbour: the kind of busy neighbour beside it, or None.
        bystanders: share of the machine that other processes took; None where the system does not say.
        missing: peers that took no part, and why.
    """

    model: str
    averages: int
    elements: int
    tensors: int
    rounds: int
    neighbour: str | None
    dropped: int
    bystanders: float | None
    rows: Sequence[Row]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def disturbed(self) -> bool:
        """Whether others took so much of the machine that the numbers decide nothing."""
        return self.bystanders is not None and self.bystanders > QUIET_SHARE

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    def fastest_peer(self) -> Row | None:
        """The peer that is nearest to emabank; without emabank, the one nearest to the limit."""
        peers = [row for row in self.rows if row.name not in (LIMIT, *OURS)]
        return min(peers, key=lambda row: (row.bank_faster or row.of_limit).median, default=None)


@dataclass(frozen=True)
class Verdict:
    """One goal, with the number that decided: met, missed, or (None) open, because the machine was disturbed."""

    goal: str
    passed: bool | None
    found: str

    def __str__(self) -> str:
        word = "OPEN" if self.passed is None else "PASS" if self.passed else "FAIL"
        return f"{word}  {self.goal}: {self.found}" + ("; other processes disturbed it" if self.passed is None else "")


@dataclass(frozen=True)
class Goal:
    """What one case must show; None where nothing is asked."""

    at_most_of_limit: float | None = None
    at_least_faster: float | None = None


# Issue 2, "What it must show", point 3.
GOALS: Mapping[tuple[str, int], Goal] = {
    ("resnet18", 5): Goal(at_most_of_limit=1.15, at_least_faster=1.5),
    ("resnet20", 5): Goal(at_least_faster=4.0),
    ("resnet18", 1): Goal(at_least_faster=1.0),
    ("resnet20", 1): Goal(at_least_faster=1.0),
}


def _verdict(goal: str, passed: bool, found: str, *cases: Case) -> Verdict:
    return Verdict(goal, None if any(case.disturbed for case in cases) else passed, found)


def rows_of(groups: Sequence[Mapping[str, list[float]]]) -> list[Row]:
    """Rows of a case out of the seconds that its interleaved runs gave.

    A case has several runs only where the peers do not all fit into memory at once; each run then has the limit and
    emabank in it, and a peer is compared with those of its own run.
    """
    pooled: dict[str, list[Mapping[str, list[float]]]] = {}
    for times in groups:
        for name in times:
            pooled.setdefault(name, []).append(times)
    rows: list[Row] = []
    for name, runs in pooled.items():
        own = [second for times in runs for second in times[name]]
        limit = [second for times in runs for second in times[LIMIT]]
        bank = [second for times in runs for second in times.get(BANK, ())]
        rows.append(
            Row(
                name,
                spread([second * 1e3 for second in own]),
                paired_ratio(own, limit),
                paired_ratio(own, bank) if bank else None,
            )
        )
    first = [name for name in (LIMIT, *OURS) if name in pooled]
    return sorted(rows, key=lambda row: (row.name not in first, row.of_limit.median if row.name not in first else 0))


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


def slowdown(quiet: Case, busy: Case, *names: str) -> tuple[float, float] | None:
    """How much longer contestants take beside a busy neighbour, of the median and of the mean: busy over quiet.

    Several names are one contestant measured several times.
    """
    before = [row.milliseconds for name in names if (row := quiet.row(name))]
    after = [row.milliseconds for name in names if (row := busy.row(name))]
    if not before or not after:
        return None
    return (
        fmean(part.median for part in after) / fmean(part.median for part in before),
        fmean(part.mean for part in after) / fmean(part.mean for part in before),
    )


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
