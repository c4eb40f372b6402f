"""The interleaved run, without timing anything: statistics, rounds, who disturbs them."""

import pytest
import torch

from emabank.bench import machine
from emabank.bench.interleave import (
    FEWEST_ROUNDS,
    ColdCaches,
    Contestant,
    Spread,
    check_moves,
    paired_ratio,
    run_interleaved,
    spread,
)


class FakeClock:
    """Advances only when told to, so that a run is timed exactly."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class FakeBystanders:
    """Takes a share of the machine that the test decides, batch by batch."""

    def __init__(self, shares):
        self.shares = iter(shares)

    def __call__(self, neighbour):
        return self

    def share(self):
        return next(self.shares)


def contestants(clock, seconds):
    live = torch.ones(4)

    def costing(cost):
        def call():
            clock.now += cost

        return call

    return [Contestant(name, costing(cost), [live]) for name, cost in seconds.items()]


def test_spread_is_median_tenths_and_mean():
    assert spread(list(range(11))) == Spread(median=5, low=1, high=9, mean=5)
    assert spread([2.0]) == Spread(2.0, 2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="no values"):
        spread([])


def test_a_slow_moment_of_the_machine_drops_out_of_a_paired_ratio():
    ratio = paired_ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0])
    assert (ratio.median, ratio.high) == (2.0, 2.0)
    with pytest.raises(ValueError, match="same rounds"):
        paired_ratio([1.0], [1.0, 2.0])


def test_a_run_times_each_contestant_once_a_round():
    clock = FakeClock()
    run = run_interleaved(
        contestants(clock, {"a": 0.1, "b": 0.3}), seconds=8, clock=clock, watch=FakeBystanders([0.0] * 99)
    )
    assert len(run.times["a"]) == len(run.times["b"]) >= FEWEST_ROUNDS
    assert run.times["a"] == pytest.approx([0.1] * len(run.times["a"]))
    assert run.times["b"] == pytest.approx([0.3] * len(run.times["b"]))
    assert (run.dropped, run.bystanders) == (0, 0.0)


def test_rounds_that_others_disturb_are_dropped():
    clock = FakeClock()
    run = run_interleaved(contestants(clock, {"a": 0.5}), seconds=8, clock=clock, watch=FakeBystanders([0.5, 0.0] * 99))
    assert len(run.times["a"]) >= FEWEST_ROUNDS
    assert run.dropped > 0
    assert run.bystanders == 0.0


def test_a_machine_that_never_calms_down_is_reported_as_such():
    clock = FakeClock()
    run = run_interleaved(contestants(clock, {"a": 0.5}), seconds=8, clock=clock, watch=FakeBystanders([0.5] * 999))
    assert len(run.times["a"]) >= FEWEST_ROUNDS
    assert run.bystanders == pytest.approx(0.5)


def test_what_is_still_under_way_when_a_call_returns_counts_and_what_was_before_does_not():
    clock, under_way = FakeClock(), [0.0]

    def start(seconds):
        under_way[0] += seconds

    def settle():
        clock.now += under_way[0]
        under_way[0] = 0.0

    contestant = Contestant("a", lambda: start(0.5), [torch.ones(1)], before=lambda: start(7.0))
    run = run_interleaved([contestant], seconds=20, clock=clock, watch=FakeBystanders([0.0] * 99), settle=settle)
    assert run.times["a"] == pytest.approx([0.5] * len(run.times["a"]))


def test_two_contestants_of_one_name_are_refused():
    with pytest.raises(ValueError, match="different names"):
        run_interleaved([Contestant("a", list, []), Contestant("a", list, [])], seconds=1)


def test_preparing_never_lets_the_live_weights_drift():
    live = torch.randn(5, dtype=torch.bfloat16)
    before, contestant, caches = live.clone(), Contestant("a", list, [live]), ColdCaches()
    caches.prepare(contestant)
    assert not torch.equal(live, before)
    caches.prepare(contestant)
    assert torch.equal(live, before)


def test_what_does_not_average_is_not_timed():
    average, live, caches = torch.ones(3), torch.ones(3), ColdCaches()
    check_moves(Contestant("ema", lambda: average.lerp_(live, 0.1), [live], lambda: [average, live]), caches)
    # So slow that on the way back to where it began it is nearer than float32 can tell.
    check_moves(Contestant("slow", lambda: average.lerp_(live, 1e-4), [live], lambda: [average, live]), caches)
    with pytest.raises(RuntimeError, match="idle did not average"):
        check_moves(Contestant("idle", lambda: None, [live], lambda: [average, live]), caches)
    with pytest.raises(RuntimeError, match="copy did not average"):
        check_moves(Contestant("copy", lambda: average.copy_(live), [live], lambda: [average, live]), caches)


def test_bystanders_are_all_but_this_run_and_its_neighbour(tmp_path):
    def write(user, idle, neighbour):
        (tmp_path / "stat").write_text(f"cpu {user} 0 0 {idle} 0 0 0 0 0 0\ncpu0 0\n")
        (tmp_path / "7").mkdir(exist_ok=True)
        (tmp_path / "7" / "stat").write_text(f"7 (a) b) R {'0 ' * 10}{neighbour} 0 0\n")

    write(10**6, 10**6, 0)
    watched = machine.Bystanders(7, tmp_path)
    write(10**6 + 6000, 10**6 + 4000, 5000)
    assert watched.share() == pytest.approx(0.1, abs=0.01)
    assert machine.Bystanders(None, tmp_path / "nowhere").share() is None
