"""Rows out of seconds, and what a step costs that is not due."""

import torch

from emabank.bench import not_due
from emabank.bench.cases import Case, Row, rows_of
from emabank.bench.interleave import Spread
from emabank.bench.peers import BANK, CONTROL, LIMIT, PAST_WARMUP, PLAIN


def case(rows, *, model="resnet18", averages=5, neighbour=None, bystanders=0.01):
    made = [
        Row(name, Spread(ms, ms, ms, mean), Spread(ratio, ratio, ratio, ratio), Spread(faster, 0, 0, 0))
        for name, ms, mean, ratio, faster in rows
    ]
    return Case(model, averages, 100, 3, 20, neighbour, 0, bystanders, made)


def test_rows_pair_each_peer_with_its_own_run():
    rows = rows_of([{LIMIT: [1.0, 1.0], BANK: [2.0, 2.0], "a": [4.0, 4.0]}, {LIMIT: [2.0], BANK: [4.0], "b": [12.0]}])
    found = {row.name: (row.of_limit.median, row.bank_faster.median) for row in rows}
    assert found == {LIMIT: (1.0, 0.5), BANK: (2.0, 1.0), "a": (4.0, 2.0), "b": (6.0, 3.0)}
    assert [row.name for row in rows][:2] == [LIMIT, BANK]


def test_our_own_other_rows_are_no_peers():
    ours = [(BANK, 1, 1, 1, 1), (CONTROL, 1, 1, 1, 0.9), (PLAIN, 1, 1, 1, 0.9), (PAST_WARMUP, 1, 1, 1, 0.8)]
    found = case([(LIMIT, 1, 1, 1, 1), *ours, ("peer", 2, 2, 2, 2)])
    assert found.fastest_peer().name == "peer"


def test_every_peer_is_compared_with_the_bank_as_a_user_builds_it():
    rows = rows_of([{LIMIT: [1.0], BANK: [2.0], PLAIN: [1.0], "torch_ema": [4.0]}])
    assert {row.name: row.bank_faster.median for row in rows}["torch_ema"] == 2.0


def test_allocation_on_a_step_is_noticed():
    kept = []
    assert not_due.measure(lambda: None, calls=10, repeats=2).operators == 0
    assert not_due.measure(lambda: torch.ones(2), calls=10, repeats=2).operators > 0
    assert not_due.measure(lambda: kept.append(object()), calls=10, repeats=2).kept_bytes > 10_000
    assert not_due.measure(lambda: bytearray(5000), calls=10, repeats=2).transient_bytes > 4000
