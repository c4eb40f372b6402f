"""overhead.json: which share of a training step the updates of all averages take, emabank and its peers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from goals import SHARES

from drawn.look import DotPlot, Picture, aligned, in_lines
from drawn.page import Shown, table
from emabank.bench.cases import title
from emabank.bench.interleave import Spread
from emabank.bench.peers import BANK
from emabank.bench.steps import PERIOD
from emabank.bench.tables import percent

_WORDS = "Share of a training step that an update of all averages takes: emabank, and every peer"
_AXIS = "an update at every step, % of a training step (dashed: the goal; for ResNets with an update every 16th step)"


def show(result: Mapping[str, Any]) -> Shown:
    """A panel for each case, with an update at every step; the table has every 16th step as well."""
    panels: dict[str, dict[str, Spread]] = {}
    goals: dict[str, float] = {}
    rows: list[list[str]] = []
    for steps in result["results"]:
        key = steps["case"]["model"], steps["case"]["averages"]
        shares = {share["name"]: Spread(**share["of_step"]) for share in steps["shares"]}
        panels[title(*key)] = shares
        if key in SHARES:
            every, most = SHARES[key]
            goals[title(*key)] = every * most
        rows.append([title(*key), steps["batch"], *_cells(shares)])
    header = ["case", "a step on", "emabank, every step", f"emabank, every {PERIOD}th step", "least of a peer"]
    lines = in_lines(aligned(panels, ours=BANK, goals=goals), 2)
    plot = DotPlot(lines, _AXIS, labelled_once=True, percent=True)
    return Shown({"overhead": (Picture(plot), _WORDS)}, [table(header, rows)])


def _cells(shares: Mapping[str, Spread]) -> list[str]:
    peers = {name: share for name, share in shares.items() if name != BANK}
    least = min(peers, key=lambda name: peers[name].median, default=None)
    peer = f"{percent(peers[least])}: {least}" if least else "none took part"
    return [percent(shares[BANK]), percent(shares[BANK], PERIOD), peer]
