"""The logic of the start-up benchmark, without timing anything: who takes part, differences, verdicts, what is seen."""

import json
import os
from pathlib import Path

import pytest
import startup
from recipes import Stopwatch
from startup import EMPTY, IMPORTS, INSIDE, QUICK, TORCH, ApartFromChildren, Process

from emabank.bench.interleave import Run
from emabank.bench.kept import read_result

MODULE, NAMES = IMPORTS
ENVIRONMENT = dict(os.environ)
NOTHING = {name: [] for name in QUICK}


def times(**other):
    """Three rounds in which everything takes what it should, but for what is given by name."""
    found = {EMPTY: [0.02] * 3, **{name: [0.2, 0.3, 0.1] for name in QUICK}, TORCH: [1.0, 2.0, 3.0]}
    found |= {MODULE: [1.001, 2.001, 3.001], NAMES: [1.01, 2.02, 3.03]}
    return found | {INSIDE.format(MODULE): [0.001] * 3, INSIDE.format(NAMES): [0.015] * 3} | other


def result(loaded=NOTHING, bystanders=0.0, **other):
    return startup.result_of(Run(times(**other), dropped=2, bystanders=bystanders), loaded)


# Who takes part -------------------------------------------------------------------------------------------------------


def test_the_processes_are_what_people_type(tmp_path):
    few = startup.processes(everything=False, runs=tmp_path)
    assert [each.name for each in few] == [EMPTY, *QUICK, TORCH, *IMPORTS]
    by_name = {each.name: each.arguments for each in few}
    assert by_name["emabank --help"] == ["-m", "emabank", "--help"]
    assert by_name["emabank list, paper"] == ["-m", "emabank", "list", "--scale", "paper"]
    assert by_name[TORCH] == ["-c", "import torch"]
    assert "; from emabank import EMABank, BestTracker, recalibrate_batchnorm; " in by_name[NAMES][1]
    more = startup.processes(everything=True, runs=tmp_path)
    assert [each.name for each in more if each not in few] == [*startup.NO_GOAL, "emabank status"]
    assert {each.name: each.code for each in more if each.code} == {"emabank lst": 2}
    assert str(tmp_path) in next(each.arguments for each in more if each.name == "emabank status")


def test_bytecode_is_written_to_its_folder_whatever_the_environment_says(tmp_path):
    given = {"PATH": "here", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "elsewhere"}
    assert startup.with_bytecode(tmp_path, given) == {"PATH": "here", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    with startup.a_place() as (runs, environment):
        folder = Path(environment["PYTHONPYCACHEPREFIX"])
        assert list(runs.iterdir()) == list(folder.iterdir()) == []
        startup.run_process(Process("x", ["-c", "import emabank"]), environment)
        assert [path.name.partition(".")[0] for path in folder.rglob("emabank/*.pyc")] == ["__init__"]
    assert not folder.exists()


def test_a_process_is_run_to_its_end_and_one_that_ends_otherwise_is_not_timed():
    assert startup.run_process(Process("x", ["-c", "print(7)"]), ENVIRONMENT) == "7\n"
    assert startup.run_process(Process("x", ["-c", "raise SystemExit(2)"], 2), ENVIRONMENT) == ""
    with pytest.raises(RuntimeError, match="^x ended with 1 and not 0; it said: ZeroDivisionError: division by zero$"):
        startup.run_process(Process("x", ["-c", "1 / 0"]), ENVIRONMENT)
    with pytest.raises(RuntimeError, match="^y ended with 0 and not 2; it said: nothing$"):
        startup.run_process(Process("y", ["-c", "pass"], 2), ENVIRONMENT)


def test_what_a_command_loads_is_seen(monkeypatch):
    with startup.a_place() as (_, environment):
        assert startup.seen_loaded(["--help"], environment) == []
        monkeypatch.setattr(startup, "HEAVY", ("numpy", "tyro", "rich"))
        assert startup.seen_loaded(["--help"], environment) == ["tyro"]
        assert startup.seen_loaded(["list", "--scale", "demo"], environment) == ["tyro", "rich"]
        assert startup.seen_loaded(["--version"], environment) == []


def test_an_import_counts_as_a_process_and_as_it_timed_itself(monkeypatch):
    printed = {MODULE: "0.25\n", NAMES: "0.5\n"}
    ran, now = [], [0.0]

    def run(process, environment):
        ran.append(process.name)
        now[0] += 8.0
        return printed.get(process.name, "a table")

    monkeypatch.setattr(startup, "run_process", run)
    clock = Stopwatch(lambda: now[0])
    chosen = startup.processes(everything=False, runs=Path())
    seconds = {}
    for each in startup.contestants(chosen, {}, clock):
        begin = clock()
        each.before()
        each.update()
        seconds[each.name] = clock() - begin
    assert ran == [each.name for each in chosen]
    assert seconds == {**dict.fromkeys(ran, 8.0), INSIDE.format(MODULE): 0.25, INSIDE.format(NAMES): 0.5}


@pytest.mark.parametrize(
    ("everyone", "children", "left"),
    [(0.5, 4.0, 0.3), (0.5, 0.0, 0.5), (0.1, 4.0, 0.0), (None, 4.0, None)],
)
def test_what_is_timed_is_no_bystander(everyone, children, left):
    class Everyone:
        def share(self):
            return everyone

    now, spent = [100.0], [7.0]
    others = ApartFromChildren(
        watch=lambda neighbour: Everyone(), clock=lambda: now[0], spent=lambda: spent[0], cores=2
    )
    now[0], spent[0] = 110.0, 7.0 + children  # of 20 seconds that two cores have in ten
    assert others.share() == (None if left is None else pytest.approx(left))


# From seconds to verdicts ---------------------------------------------------------------------------------------------


def test_differences_and_ratios_are_taken_round_by_round():
    found = result()
    assert [row.name for row in found.rows] == [EMPTY, *QUICK, TORCH, *IMPORTS]
    assert found.row("emabank --help").seconds.median == 0.2
    assert found.row("emabank --help").of_empty.median == pytest.approx(10)
    assert found.row("emabank --help").over_empty.median == pytest.approx(0.18)
    assert found.row("emabank --help").over_torch is None
    added = found.row(NAMES)
    # Torch's own times differ by seconds; what is added to them is seen all the same.
    assert (added.over_torch.median, added.of_torch.median) == (pytest.approx(0.02), pytest.approx(1.01))
    assert added.inside.median == 0.015
    assert (found.case.rounds, found.case.dropped) == (3, 2)


def verdicts(**given):
    return {verdict.goal.partition(":")[0]: verdict.passed for verdict in startup.judge(result(**given))[:6]}


def test_the_goals_go_both_ways():
    assert verdicts() == dict.fromkeys([*QUICK, *IMPORTS], True)
    assert verdicts(**{"emabank --help": [0.6, 0.4, 0.51]})["emabank --help"] is False
    assert verdicts(**{"emabank list, paper": [0.6, 0.4, 0.49]})["emabank list, paper"] is True
    assert verdicts(**{NAMES: [1.06, 2.06, 3.0]})[NAMES] is False
    assert verdicts(**{INSIDE.format(NAMES): [0.06] * 3})[NAMES] is False, "whichever is the larger"
    assert verdicts(**{MODULE: [1.04, 2.04, 9.0]})[MODULE] is True


def test_a_disturbed_machine_leaves_times_open_and_not_what_was_seen():
    judged = startup.judge(result(bystanders=0.3, loaded={**NOTHING, "emabank --help": ["torch", "numpy"]}))
    assert [verdict.passed for verdict in judged] == [None] * 6 + [False, True, True, True]
    assert str(judged[6]) == (
        "FAIL  emabank --help: loads none of torch, numpy, pandas, matplotlib: torch, numpy in sys.modules"
    )


def test_the_table_has_every_process_with_what_it_is_beyond():
    text = startup.result_text(result(bystanders=0.01))
    assert text.startswith("start-up: 3 rounds; other processes took 1.0% of the machine (2 rounds dropped)\n")
    lines = {line.partition("  ")[0]: line for line in text.splitlines()[2:]}
    assert list(lines) == [EMPTY, *QUICK, TORCH, *IMPORTS]
    assert "180 (100 to 260)" in lines["emabank --help"]
    assert lines[NAMES].endswith("20 (12 to 28)  15 (15 to 15)")


# The script -----------------------------------------------------------------------------------------------------------


def test_the_result_is_kept_with_named_ratios_and_a_missed_goal_is_code_1(monkeypatch, tmp_path, capsys):
    asked = []

    def measure(**given):
        asked.append(given)
        return result(**{"emabank --help": [0.9] * 3}) if len(asked) > 1 else result()

    monkeypatch.setattr(startup, "measure", measure)
    monkeypatch.setattr(startup, "conditions", lambda: {"cpu": "a"})
    path = tmp_path / "startup.json"
    assert startup.main(["--seconds", "3", "--json", str(path), "--check"]) == 0
    assert "PASS  emabank --help: under 0.5 s: 0.200 s" in capsys.readouterr().out
    kept = read_result(path)
    assert {name: ratio.value.median for name, ratio in kept["ratios"].items()} == {
        "startup/help/of-empty": pytest.approx(10),
        "startup/list/of-empty": pytest.approx(10),
        "startup/import/of-import-torch": pytest.approx(1.0005),
        "startup/names/of-import-torch": pytest.approx(1.01),
    }
    assert {ratio.rounds for ratio in kept["ratios"].values()} == {3}
    assert kept["conditions"] == {"cpu": "a", "files": "compiled, in the page cache"}
    assert json.loads(path.read_text())["results"][0]["loaded"] == NOTHING
    assert startup.main(["--check", "--all"]) == 1
    assert startup.main([]) == 0
    assert [given["everything"] for given in asked] == [False, True, False] and asked[0]["seconds"] == 3


def test_a_process_that_fails_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(startup, "QUICK", {})
    monkeypatch.setattr(startup, "processes", lambda **given: [Process("x", ["-c", "1 / 0"])])
    assert startup.main(["--seconds", "0"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "startup.py: x ended with 1 and not 0; it said: ZeroDivisionError: division by zero"
    )
