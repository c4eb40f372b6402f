"""The interleaved run: statistics, order, dropped windows, contestants that do not average, result files."""

import gc
import sys
from itertools import chain, pairwise, repeat
from types import SimpleNamespace

import harness
import pytest
import torch
from harness import Row, check_averages, make_case, read_case, read_json, run_interleaved, write_result

from emabank.study.bench import (
    WARMUP_ROUNDS,
    BackgroundLoad,
    Contestant,
    Rounds,
    Spread,
    memory_limit,
    paired_ratio,
    spread,
)


def idle(name, calls=None):
    """A contestant that takes no time and needs no preparation."""
    return Contestant(name, lambda: None if calls is None else calls.append(name), before=lambda: None)


def loads(shares):
    """Stands in for `BackgroundLoad`: other processes use these shares of the machine, window by window."""
    rest = iter(shares)
    return lambda: SimpleNamespace(share=lambda: next(rest))


def test_a_spread_is_the_median_the_tenths_and_the_mean():
    assert spread(range(11)) == Spread(median=5, low=1, high=9, mean=5)
    assert spread([2.0]) == Spread(2.0, 2.0, 2.0, 2.0)


def test_a_slow_moment_of_the_machine_cancels_in_a_paired_ratio():
    assert paired_ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == Spread(2.0, 2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="zip"):
        paired_ratio([1.0], [1.0, 2.0])


def test_every_contestant_plays_once_per_round_in_an_order_that_changes():
    calls = []
    rounds = Rounds([idle(name, calls) for name in "abc"])
    del calls[:]
    times = rounds.play(0.0, least=20)
    orders = ["".join(calls[at : at + 3]) for at in range(0, len(calls), 3)]
    assert len(orders) == len(times) == 20
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert len(set(orders)) > 2
    assert all(set(played) == {"a", "b", "c"} and min(played.values()) >= 0 for played in times)
    with pytest.raises(ValueError, match="must have different names"):
        Rounds([idle("a"), idle("a")])


def test_an_interrupt_leaves_the_garbage_collector_on():
    turns = chain(repeat(None, 1 + WARMUP_ROUNDS), [KeyboardInterrupt()])

    def update():
        if (error := next(turns)) is not None:
            raise error

    rounds = Rounds([Contestant("a", update, before=lambda: None)])
    with pytest.raises(KeyboardInterrupt):
        rounds.play(1.0)
    assert gc.isenabled()


def test_live_weights_change_before_every_turn_and_never_drift():
    live = torch.randn(5, dtype=torch.bfloat16)
    start, seen = live.clone(), []
    rounds = Rounds([Contestant("a", lambda: seen.append(live.clone()), [live])])
    rounds.play(0.0, least=4)
    assert all(not torch.equal(one, other) for one, other in pairwise(seen[1:]))
    assert all(torch.equal(weights, start) or torch.equal(weights, 2 * start) for weights in seen)


def test_disturbed_windows_are_dropped_and_replaced():
    run = run_interleaved([idle("a"), idle("b")], seconds=20, window=0.0, background=loads([0.5, 0.01] * 1000))
    assert len(run.times["a"]) == len(run.times["b"]) == harness.MAX_ROUNDS
    assert run.dropped == harness.MAX_ROUNDS
    assert run.background == pytest.approx(0.01)


def test_a_machine_that_is_never_quiet_is_reported():
    run = run_interleaved([idle("a")], seconds=0.001, window=0.001, background=loads(repeat(0.5)))
    case = make_case("case", [run], over=("a",), better={}, about={})
    assert case.rounds >= 15
    assert case.dropped == 0
    assert case.disturbed


def test_background_load_is_what_others_use(tmp_path):
    def write(busy, free):
        (tmp_path / "stat").write_text(f"cpu {busy} 0 0 {free} 0 0 0 0 0 0\ncpu0 0\n")

    write(10**6, 10**6)
    load = BackgroundLoad(tmp_path)
    write(10**6 + 10**5, 10**6 + 3 * 10**5)
    assert load.share() == pytest.approx(0.25, abs=0.01)  # of which this process used next to nothing
    assert BackgroundLoad(tmp_path / "nowhere").share() is None


def test_what_does_not_average_is_an_error():
    average, live = torch.ones(3), torch.ones(3)
    prepare = Rounds([idle("a")]).prepare

    def check(name, update):
        check_averages(Contestant(name, update, [live], lambda: [average, live]), prepare)

    check("ema", lambda: average.lerp_(live, 0.1))
    check("slow", lambda: average.lerp_(live, 1e-4))  # on one of two updates it is too near to move in float32
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


def test_a_result_file_gives_back_its_cases_and_can_be_added_to(tmp_path, monkeypatch):
    path = tmp_path / "update.json"
    monkeypatch.setattr(sys, "argv", ["update.py", "--wheels", "/home/me", "--json", str(path)])
    run = harness.Run({"a": [1.0, 2.0]}, 0, 0.0)
    one, two, again = (make_case(name, [run], over=("a",), better={}, about={}) for name in ("one", "two", "two"))
    write_result(path, {"cpu": "x"}, [one, two])
    write_result(path, {"cpu": "x"}, [again], add=True)
    result = read_json(path)
    assert [read_case(entry) for entry in result["cases"]] == [one, again]
    assert all(isinstance(row, Row) for row in read_case(result["cases"][0]).rows)
    assert result["benchmark"] == "update"
    assert result["command"] == "; ".join(["python benchmarks/update.py --wheels DIR"] * 2)
    with pytest.raises(ValueError, match="same conditions; got other cpu"):
        write_result(path, {"cpu": "y"}, [again], add=True)
