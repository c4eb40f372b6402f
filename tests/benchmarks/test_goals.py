"""The logic of the update and memory benchmarks, without timing anything: verdicts that go both ways, wheels, help."""

import zipfile

import goals
import memory
import overhead
import pytest
import torch
import update
import wheels

from emabank.bench import not_due
from emabank.bench.cases import Case, Row
from emabank.bench.interleave import Spread
from emabank.bench.peers import BANK, LIMIT, NotAvailable
from emabank.bench.steps import Share, Steps
from emabank.bench.tables import case_table


def case(rows, *, model="resnet18", averages=5, neighbour=None, bystanders=0.01):
    made = [
        Row(name, Spread(ms, ms, ms, mean), Spread(ratio, ratio, ratio, ratio), Spread(faster, 0, 0, 0))
        for name, ms, mean, ratio, faster in rows
    ]
    return Case(model, averages, 100, 3, 20, neighbour, 0, bystanders, made)


@pytest.mark.parametrize(("of_limit", "faster", "expected"), [(1.1, 1.7, [True, True]), (1.2, 1.6, [False, False])])
def test_goals_of_a_case_go_both_ways(of_limit, faster, expected):
    found = case([(LIMIT, 1, 1, 1, 1), (BANK, 1, 1, of_limit, 1), ("slow", 9, 9, 9, 9), ("fast", 2, 2, 2, faster)])
    judged = goals.judge_case(found)
    assert [verdict.passed for verdict in judged] == expected
    assert "fast" in judged[1].found
    assert str(judged[0]).startswith("PASS" if expected[0] else "FAIL")


def test_with_one_average_a_tie_is_enough():
    rows = [(LIMIT, 1, 1, 1, 1), (BANK, 1, 1, 1, 1)]
    for faster, expected in ((0.985, True), (0.95, False)):
        assert [v.passed for v in goals.judge_case(case([*rows, ("peer", 1, 1, 1, faster)], averages=1))] == [expected]


def test_a_disturbed_case_decides_nothing():
    judged = goals.judge_case(case([(LIMIT, 1, 1, 1, 1), (BANK, 1, 1, 1, 1), ("p", 2, 2, 2, 2)], bystanders=0.4))
    assert [verdict.passed for verdict in judged] == [None, None]
    assert str(judged[0]).startswith("OPEN")


@pytest.mark.parametrize(
    ("median", "mean", "expected"), [(5.9, 5.9, True), (6.1, 5.9, False), (5.9, 6.1, False), (100, 100, False)]
)
def test_a_cliff_is_seen_in_the_median_and_in_the_mean(median, mean, expected):
    quiet = case([(LIMIT, 1, 1, 1, 1), (BANK, 1, 1, 1, 1)])
    busy = case([(LIMIT, 2, 2, 1, 1), (BANK, median, mean, 1, 1)], neighbour="spin")
    assert [verdict.passed for verdict in goals.judge_cliff(quiet, busy)] == [expected]
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
    assert [verdict.passed for verdict in goals.judge_not_due(cost)] == expected


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
    with pytest.raises(NotAvailable, match="surely_not_installed"):
        wheels.load_file(wheel, "peer/broken.py")


def test_help_helps(capsys):
    for script in (update, memory, overhead):
        with pytest.raises(SystemExit) as ended:
            script.main(["--help"])
        assert ended.value.code == 0
    assert "--averages" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "averages", "of_step", "expected"),
    [
        ("resnet20", 5, 0.0079, [True]),
        ("resnet20", 5, 0.0081, [False]),
        ("gpt124m", 1, 0.079, [True]),
        ("gpt124m", 1, 0.081, [False]),
        ("gpt124m", 5, 0.5, []),
    ],
)
def test_the_share_of_a_step_goes_both_ways(model, averages, of_step, expected):
    share = Spread(of_step, of_step, of_step, of_step)
    quiet = case([], model=model, averages=averages)
    judged = goals.judge_steps(Steps(quiet, "a batch", share, [Share(BANK, share, share)]))
    assert [verdict.passed for verdict in judged] == expected


def test_a_case_of_the_overhead_is_a_model_and_a_number(capsys):
    assert overhead.case("resnet20:5") == ("resnet20", 5)
    for wrong in ("resnet20", "resnet20:0", "vgg:5", "resnet20:x"):
        with pytest.raises(SystemExit):
            overhead.main(["--cases", wrong])
    assert "give MODEL:AVERAGES" in capsys.readouterr().err
