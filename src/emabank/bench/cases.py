"""What was measured: cases, their rows, and verdicts on goals. Pure functions of seconds: nothing is timed here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from emabank.bench.interleave import Spread, paired_ratio, spread
from emabank.bench.machine import QUIET_SHARE
from emabank.bench.peers import BANK, LIMIT, OURS


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
