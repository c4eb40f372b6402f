"""The logic of the benchmarks, without timing anything: statistics, the run, verdicts that go both ways."""

import json
import zipfile
from pathlib import Path

import machine
import memory
import not_due
import pytest
import torch
import update
import verdicts
import wheels
from interleave import (
    FEWEST_ROUNDS,
    ColdCaches,
    Contestant,
    Spread,
    check_moves,
    paired_ratio,
    run_interleaved,
    spread,
)
from models import averaged_tensors, build
from peers import (
    BANK,
    CONTROL,
    DECAYS,
    LIMIT,
    PAST_WARMUP,
    PLAIN,
    decays,
    emabank_bank,
    torch_averaged_model,
)
from tables import case_table, write_json


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


def case(rows, *, model="resnet18", averages=5, neighbour=None, bystanders=0.01):
    made = [
        verdicts.Row(name, Spread(ms, ms, ms, mean), Spread(ratio, ratio, ratio, ratio), Spread(faster, 0, 0, 0))
        for name, ms, mean, ratio, faster in rows
    ]
    return verdicts.Case(model, averages, 100, 3, 20, neighbour, 0, bystanders, made)


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
    with pytest.raises(RuntimeError, match="idle did not average"):
        check_moves(Contestant("idle", lambda: None, [live], lambda: [average, live]), caches)
    with pytest.raises(RuntimeError, match="copy did not average"):
        check_moves(Contestant("copy", lambda: average.copy_(live), [live], lambda: [average, live]), caches)


def test_a_peer_is_seen_to_average():
    contestant = torch_averaged_model("torch", torch.nn.Linear(3, 2), 2, use_buffers=False)
    check_moves(contestant, ColdCaches())


def test_decays_are_the_papers_and_all_different():
    assert decays(5) == list(DECAYS)
    assert len(set(decays(20))) == 20
    assert all(0.998 < decay < 1 for decay in decays(20)[5:])


def test_an_average_holds_each_parameter_once_and_the_running_statistics():
    tied = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    tied[1].weight = tied[0].weight
    assert sum(tensor.numel() for tensor in averaged_tensors(tied)) == 4 + 2 + 2 + 4 + 4
    assert len(averaged_tensors(build("small1000"))) == 1000
    with pytest.raises(ValueError, match="there is no model 'vgg'"):
        build("vgg")


def test_rows_pair_each_peer_with_its_own_run():
    rows = verdicts.rows_of(
        [{LIMIT: [1.0, 1.0], BANK: [2.0, 2.0], "a": [4.0, 4.0]}, {LIMIT: [2.0], BANK: [4.0], "b": [12.0]}]
    )
    found = {row.name: (row.of_limit.median, row.bank_faster.median) for row in rows}
    assert found == {LIMIT: (1.0, 0.5), BANK: (2.0, 1.0), "a": (4.0, 2.0), "b": (6.0, 3.0)}
    assert [row.name for row in rows][:2] == [LIMIT, BANK]


@pytest.mark.parametrize(("of_limit", "faster", "expected"), [(1.1, 1.6, [True, True]), (1.2, 1.4, [False, False])])
def test_goals_of_a_case_go_both_ways(of_limit, faster, expected):
    found = case([(LIMIT, 1, 1, 1, 1), (BANK, 1, 1, of_limit, 1), ("slow", 9, 9, 9, 9), ("fast", 2, 2, 2, faster)])
    judged = verdicts.judge_case(found)
    assert [verdict.passed for verdict in judged] == expected
    assert "fast" in judged[1].found
    assert str(judged[0]).startswith("PASS" if expected[0] else "FAIL")


def test_our_own_other_rows_are_no_peers():
    ours = [(BANK, 1, 1, 1, 1), (CONTROL, 1, 1, 1, 0.9), (PLAIN, 1, 1, 1, 0.9), (PAST_WARMUP, 1, 1, 1, 0.8)]
    found = case([(LIMIT, 1, 1, 1, 1), *ours, ("peer", 2, 2, 2, 2)])
    assert found.fastest_peer().name == "peer"


def test_every_peer_is_compared_with_the_bank_as_a_user_builds_it():
    rows = verdicts.rows_of([{LIMIT: [1.0], BANK: [2.0], PLAIN: [1.0], "torch_ema": [4.0]}])
    assert {row.name: row.bank_faster.median for row in rows}["torch_ema"] == 2.0


@pytest.mark.parametrize(("name", "averaged"), [(BANK, True), (PLAIN, False), (PAST_WARMUP, True)])
def test_the_bank_that_is_named_plain_leaves_batch_norm_out(name, averaged):
    model = torch.nn.BatchNorm1d(3)
    contestant = emabank_bank(model, 1, name)
    bank = contestant.update.__self__
    model.running_mean.fill_(1.0)
    contestant.update()
    model.running_mean.fill_(5.0)
    contestant.update()
    mean = bank.weights(bank.names[0])["running_mean"]
    assert bool((mean != 5.0).all()) is averaged


def test_with_one_average_a_tie_is_enough():
    rows = [(LIMIT, 1, 1, 1, 1), (BANK, 1, 1, 1, 1)]
    for faster, expected in ((0.985, True), (0.95, False)):
        assert [v.passed for v in verdicts.judge_case(case([*rows, ("peer", 1, 1, 1, faster)], averages=1))] == [
            expected
        ]


def test_a_disturbed_case_decides_nothing():
    judged = verdicts.judge_case(case([(LIMIT, 1, 1, 1, 1), (BANK, 1, 1, 1, 1), ("p", 2, 2, 2, 2)], bystanders=0.4))
    assert [verdict.passed for verdict in judged] == [None, None]
    assert str(judged[0]).startswith("OPEN")


@pytest.mark.parametrize(
    ("median", "mean", "expected"), [(5.9, 5.9, True), (6.1, 5.9, False), (5.9, 6.1, False), (100, 100, False)]
)
def test_a_cliff_is_seen_in_the_median_and_in_the_mean(median, mean, expected):
    quiet = case([(LIMIT, 1, 1, 1, 1), (BANK, 1, 1, 1, 1)])
    busy = case([(LIMIT, 2, 2, 1, 1), (BANK, median, mean, 1, 1)], neighbour="spin")
    assert [verdict.passed for verdict in verdicts.judge_cliff(quiet, busy)] == [expected]
    assert "busy neighbour (spin)" in case_table(busy, quiet)


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (not_due.NotDue(300, 0, 32, 0), [True, True]),
        (not_due.NotDue(1300, 0, 32, 0), [False, True]),
        (not_due.NotDue(300, 0, 500, 0), [True, False]),
        (not_due.NotDue(300, 4000, 32, 0), [True, False]),
        (not_due.NotDue(300, 0, 32, 1), [True, False]),
    ],
)
def test_a_step_that_is_not_due(cost, expected):
    assert [verdict.passed for verdict in verdicts.judge_not_due(cost)] == expected


def test_allocation_on_a_step_is_noticed():
    kept = []
    assert not_due.measure(lambda: None, calls=10, repeats=2).operators == 0
    assert not_due.measure(lambda: torch.ones(2), calls=10, repeats=2).operators > 0
    assert not_due.measure(lambda: kept.append(object()), calls=10, repeats=2).kept_bytes > 10_000
    assert not_due.measure(lambda: bytearray(5000), calls=10, repeats=2).transient_bytes > 4000


def test_memory_allows_two_percent_or_one_mebibyte():
    assert memory.allowed(1000, 1) == 4000 + 2**20
    assert memory.allowed(10**8, 5) == pytest.approx(2e9 * 1.02)
    for tensors, expected in ((4000 + 2**20, True), (4001 + 2**20, False)):
        assert memory.judge(memory.Cost("m", 1, 1000, 1000, tensors, None, None)).passed is expected


def test_storages_count_views_once_and_see_what_is_new():
    before = memory.storages()
    kept = torch.zeros(1000)
    views = [kept[:10], kept.view(10, 100)]
    new = {address: size for address, size in memory.storages().items() if address not in before}
    assert new == {kept.untyped_storage().data_ptr(): 4000}
    assert len(views) == 2


def test_a_wheels_file_is_loaded_with_stand_ins_for_what_it_imports(tmp_path):
    wheel = tmp_path / "peer-1.2.3-py3-none-any.whl"
    source = "from .utils.deep import is_here, Thing\nFOUND = is_here(), Thing.__name__\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("peer/training.py", source)
        archive.writestr("peer/broken.py", "import surely_not_installed\n")
    assert wheels.find_wheel("peer", tmp_path) == wheel
    assert wheels.version(wheel) == "1.2.3"
    assert wheels.load_file(wheel, "peer/training.py", ("utils", "utils.deep")).FOUND == (False, "Thing")
    with pytest.raises(wheels.NotAvailable, match="surely_not_installed"):
        wheels.load_file(wheel, "peer/broken.py")


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


def test_a_result_is_whole_or_not_there(tmp_path: Path):
    path = tmp_path / "results" / "update.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [file.name for file in path.parent.iterdir()] == ["update.json"]


def test_help_helps(capsys):
    for script in (update, memory):
        with pytest.raises(SystemExit) as ended:
            script.main(["--help"])
        assert ended.value.code == 0
    assert "--averages" in capsys.readouterr().out
