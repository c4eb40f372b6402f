"""The benchmarks: interleaved rounds, contestants that really average, a step that is not due, the gate."""

import json
from itertools import pairwise, repeat
from types import SimpleNamespace

import pytest
import torch

from benchmarks import harness, update
from benchmarks.gate import compare_files, main
from benchmarks.harness import check_averages, make_case, run_interleaved
from benchmarks.peers import BANKS, PEERS, NotAvailable, make_bank
from emabank import EMA, EMABank
from emabank.study.bench import (
    Contestant,
    Rounds,
    Spread,
    memory_limit,
    paired_ratio,
    spread,
)


def idler(name, calls=None):
    """A contestant that takes no time and needs no preparation."""
    return Contestant(name, lambda: None if calls is None else calls.append(name), before=lambda: None)


def fake_load(shares):
    """Stands in for `BackgroundLoad`: other processes use these shares of the machine, window by window."""
    rest = iter(shares)
    return lambda: SimpleNamespace(share=lambda: next(rest))


def test_spread_is_the_median_the_outer_deciles_and_the_mean():
    assert spread(range(11)) == Spread(median=5, low=1, high=9, mean=5)
    assert spread([2.0]) == Spread(2.0, 2.0, 2.0, 2.0)


def test_a_slow_moment_of_the_machine_cancels_in_a_paired_ratio():
    assert paired_ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == Spread(2.0, 2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="zip"):
        paired_ratio([1.0], [1.0, 2.0])


def test_every_contestant_runs_once_per_round_in_changing_order():
    calls = []
    rounds = Rounds([idler(name, calls) for name in "abc"])
    del calls[:]
    times = rounds.play(0.0, least=20)
    orders = ["".join(calls[at : at + 3]) for at in range(0, len(calls), 3)]
    assert len(orders) == len(times) == 20
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert len(set(orders)) > 2
    assert all(set(seconds) == {"a", "b", "c"} and min(seconds.values()) >= 0 for seconds in times)
    with pytest.raises(ValueError, match="must have different names"):
        Rounds([idler("a"), idler("a")])


def test_live_weights_change_before_every_turn_and_never_drift():
    live = torch.randn(5, dtype=torch.bfloat16)
    start, seen = live.clone(), []
    rounds = Rounds([Contestant("a", lambda: seen.append(live.clone()), [live])])
    rounds.play(0.0, least=4)
    assert all(not torch.equal(before, after) for before, after in pairwise(seen[1:]))
    assert all(torch.equal(weights, start) or torch.equal(weights, 2 * start) for weights in seen)


def test_disturbed_windows_are_dropped_and_replaced():
    run = run_interleaved([idler("a"), idler("b")], seconds=20, window=0.0, background=fake_load([0.5, 0.01] * 1000))
    assert len(run.times["a"]) == len(run.times["b"]) == harness.MAX_ROUNDS
    assert run.dropped == harness.MAX_ROUNDS
    assert run.background == pytest.approx(0.01)


def test_a_machine_that_is_never_quiet_is_reported():
    run = run_interleaved([idler("a")], seconds=0.001, window=0.001, background=fake_load(repeat(0.5)))
    case = make_case("case", [run], over=("a",), better={}, about={})
    assert case.rounds >= 15
    assert case.dropped == 0
    assert case.disturbed


def test_a_contestant_that_does_not_average_is_an_error():
    average, live = torch.ones(3), torch.ones(3)
    prepare = Rounds([idler("a")]).prepare

    def check(name, update):
        check_averages(Contestant(name, update, [live], lambda: [average, live]), prepare)

    check("ema", lambda: average.lerp_(live, 0.1))
    check("slow", lambda: average.lerp_(live, 1e-4))  # in float32 only every other update moves it
    with pytest.raises(RuntimeError, match="idle did not move its averages"):
        check("idle", lambda: None)
    with pytest.raises(RuntimeError, match="copy copied the live weights"):
        check("copy", lambda: average.copy_(live))


@pytest.mark.parametrize("capacity", [10**6, 100, 70])
def test_the_memory_limit_moves_as_many_elements_as_the_averages_have(capacity, monkeypatch):
    moved, multiply = [], torch.Tensor.mul_
    monkeypatch.setattr(torch.Tensor, "mul_", lambda x, *a: (moved.append(x.numel()), multiply(x, *a))[1])
    monkeypatch.setattr("emabank.study.bench.LIMIT_ELEMENTS", capacity)
    memory_limit(torch.nn.Linear(9, 7, bias=False), 5).update()
    assert sum(moved) == 5 * 63
    assert max(moved) <= capacity


def test_a_contestant_is_compared_within_its_own_runs():
    runs = [
        harness.Run({"limit": [1.0, 10.0], "a": [2.0, 20.0]}, 1, 0.01),
        harness.Run({"limit": [4.0], "b": [12.0]}, 2, 0.03),
    ]
    case = make_case("case", runs, over=("limit",), better={"a": "lower"}, about={})
    ratios = {row.name: (row.over["limit"].median, row.better) for row in case.rows}
    assert ratios == {"limit": (1.0, None), "a": (2.0, "lower"), "b": (3.0, None)}
    assert (case.rounds, case.dropped, case.background) == (3, 3, 0.03)


# Contestants ----------------------------------------------------------------------------------------------------------


def small_model():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_really_averages(peer):
    try:
        contestant = peer.build(small_model(), 2)
    except NotAvailable as error:
        pytest.skip(str(error))
    check_averages(contestant, Rounds([contestant]).prepare)
    assert len(contestant.read()) == 3


@pytest.mark.parametrize("name", BANKS)
def test_a_bank_really_averages(name):
    contestant = make_bank(name, small_model(), 2)
    check_averages(contestant, Rounds([contestant]).prepare)


def test_a_step_that_is_not_due_allocates_nothing():
    bank = EMABank(small_model(), [EMA(per_update=0.9), EMA(per_update=0.99)], every=10**9)
    cost = update.measure_not_due(bank.update, calls=100, repeats=3)
    assert cost.operators == 0
    assert cost.kept_bytes <= 64 and cost.transient_bytes <= 64  # the next value of the step counter
    due = update.measure_not_due(EMABank(small_model(), [0.9], every=1).update, calls=1, repeats=1)
    assert due.operators > 0


# The gate -------------------------------------------------------------------------------------------------------------


def write_result(folder, ratio, *, width=0.02, background=0.0, name="resnet20, 5 averages", better="lower"):
    folder.mkdir(exist_ok=True)
    ms = {"median": 1.0, "low": 1.0, "high": 1.0, "mean": 1.0}
    over = {"median": ratio, "low": ratio - width, "high": ratio + width, "mean": ratio}
    row = {"name": "emabank", "ms": ms, "over": {"memory limit": over}, "better": better}
    limit = {"name": "memory limit", "ms": ms, "over": {"memory limit": ms}, "better": None}
    case = {"name": name, "rounds": 30, "dropped": 0, "background": background, "rows": [limit, row]}
    result = {"format": 2, "benchmark": "update", "conditions": {"cpu": "x"}, "cases": [case]}
    path = folder / "update.json"
    path.write_text(json.dumps(result))
    return path


@pytest.mark.parametrize(
    ("before", "now", "code", "verdict"),
    [
        ({"ratio": 1.0}, {"ratio": 1.0}, 0, "same"),
        ({"ratio": 1.0}, {"ratio": 1.09}, 0, "same"),
        ({"ratio": 1.0}, {"ratio": 1.2}, 1, "slower"),
        ({"ratio": 1.2}, {"ratio": 1.0}, 0, "faster"),
        ({"ratio": 1.2, "better": "higher"}, {"ratio": 1.0, "better": "higher"}, 1, "slower"),
        ({"ratio": 1.0, "width": 0.9}, {"ratio": 1.2, "width": 0.9}, 0, "same"),
        ({"ratio": 1.0}, {"ratio": 1.2, "background": 0.3}, 2, "disturbed"),
        ({"ratio": 1.0}, {"ratio": 1.2, "name": "resnet18, 5 averages"}, 2, "new"),
    ],
)
def test_the_gate_compares_a_ratio_with_the_kept_one(before, now, code, verdict, tmp_path, capsys):
    write_result(tmp_path / "kept", **before)
    path = write_result(tmp_path / "now", **now)
    assert [finding.verdict for finding in compare_files(path, tmp_path / "kept")] == [verdict]
    assert main([str(path), "--kept", str(tmp_path / "kept")]) == code
    assert verdict in capsys.readouterr().out
