"""The regression gate on made-up results: what is slower and what is chance, what is kept, measured again, and said."""

import json
import random
import statistics
from pathlib import Path

import gate
import pytest
from gate import DISTURBED, FASTER, NEW, NOT_MEASURED, SAME, SLOWER

from emabank.bench.cases import Verdict
from emabank.bench.interleave import Spread, spread
from emabank.bench.kept import Ratio, keep_result

MACHINE = {"date": "2026-11-16", "cpu": "Some CPU", "threads": 2}
NAME = "update/tiny/5/of-limit"


def around(median, width=0.1):
    """A spread whose 10 and 90 % points are so far from each other, as a share of the median."""
    return Spread(median, median * (1 - width / 2), median * (1 + width / 2), median)


def result(path, values, *, better="lower", rounds=100, width=0.1, passed=True, conditions=MACHINE, **rest):
    ratios = [Ratio(name, around(median, width), rounds, better) for name, median in values.items()]
    keep_result(path, "python some.py", conditions, ratios=ratios, verdicts=[Verdict("g", passed, "f")], **rest)
    return path


@pytest.fixture
def kept(tmp_path):
    """Kept ratios with one in it, 1.0 with a narrow spread."""
    path = tmp_path / "ratios.json"
    gate.accept(path, {}, gate.ratios_in([result(tmp_path / "update.json", {NAME: 1.0})]))
    return path


def run(kept, *arguments, **keywords):
    return gate.main([*map(str, arguments), "--kept", str(kept)], **keywords)


def statuses(kept, *paths):
    found = gate.compare_all(gate.read_kept(kept), gate.ratios_in(paths))
    return {finding.name: finding.status for finding in found}


# What is slower -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("better", "median", "expected"),
    [
        ("lower", 1.12, SLOWER), ("lower", 1.08, SAME), ("lower", 0.95, SAME), ("lower", 0.89, FASTER),
        ("higher", 0.89, SLOWER), ("higher", 0.93, SAME), ("higher", 1.05, SAME), ("higher", 1.12, FASTER),
    ],
)  # fmt: skip
def test_slower_is_more_than_a_tenth_in_the_wrong_direction(tmp_path, better, median, expected):
    kept = tmp_path / "ratios.json"
    gate.accept(kept, {}, gate.ratios_in([result(tmp_path / "a.json", {NAME: 1.0}, better=better)]))
    now = result(tmp_path / "b.json", {NAME: median}, better=better)
    assert statuses(kept, now) == {NAME: expected}
    assert run(kept, now) == (1 if expected == SLOWER else 0)


@pytest.mark.parametrize(("width", "rounds", "expected"), [(0.1, 15, SLOWER), (2.0, 15, SAME), (2.0, 400, SLOWER)])
def test_what_chance_can_do_is_not_slower(tmp_path, kept, width, rounds, expected):
    now = result(tmp_path / "now.json", {NAME: 1.3}, width=width, rounds=rounds)
    assert statuses(kept, now) == {NAME: expected}


def test_the_standard_error_is_how_far_medians_lie_from_each_other():
    draw = random.Random(0)
    samples = [[draw.gauss(5, 2) for _ in range(50)] for _ in range(2000)]
    seen = statistics.stdev(statistics.median(sample) for sample in samples)
    said = statistics.fmean(gate.standard_error(spread(sample), 50) for sample in samples)
    assert said == pytest.approx(seen, rel=0.1)


def test_for_long_tails_the_standard_error_is_rather_too_large():
    draw = random.Random(0)
    samples = [[draw.lognormvariate(0, 1) for _ in range(50)] for _ in range(1000)]
    seen = statistics.stdev(statistics.median(sample) for sample in samples)
    assert statistics.fmean(gate.standard_error(spread(sample), 50) for sample in samples) > seen


def test_what_is_new_and_what_is_missing_is_named(tmp_path, kept, capsys):
    now = result(tmp_path / "now.json", {"other/ratio": 2.0})
    assert statuses(kept, now) == {NAME: NOT_MEASURED, "other/ratio": NEW}
    assert run(kept, now) == 2  # nothing was compared
    shown = capsys.readouterr().out
    assert f"not measured: {NAME}" in shown and "other/ratio  new" in shown


def test_a_ratio_that_now_means_the_opposite_is_a_new_one(tmp_path, kept):
    assert statuses(kept, result(tmp_path / "now.json", {NAME: 1.0}, better="higher")) == {NAME: NEW}


# Who decides nothing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("passed", "rest", "disturbed"),
    [
        (True, {}, False), (False, {}, False), (None, {}, True),
        (True, {"cases": [{"bystanders": 0.01}, {"bystanders": None}]}, False),
        (True, {"cases": [{"bystanders": 0.01}, {"case": {"bystanders": 0.2}}]}, True),
    ],
)  # fmt: skip
def test_a_disturbed_result_decides_nothing_and_is_not_accepted(tmp_path, kept, capsys, passed, rest, disturbed):
    now = result(tmp_path / "now.json", {NAME: 1.5}, passed=passed, **rest)
    before = kept.read_text()
    assert statuses(kept, now) == {NAME: DISTURBED if disturbed else SLOWER}
    assert run(kept, now) == (2 if disturbed else 1)
    assert ("now.json: other processes were at work" in capsys.readouterr().out) is disturbed
    assert run(kept, now, "--accept") == (2 if disturbed else 0)
    assert (kept.read_text() == before) is disturbed
    assert ("not accepted" in capsys.readouterr().out) is disturbed


@pytest.mark.parametrize(("what", "value"), [("cpu", "Other CPU"), ("threads", 8)])
def test_another_machine_is_said_and_still_compared(tmp_path, kept, capsys, what, value):
    assert run(kept, result(tmp_path / "now.json", {NAME: 1.5}, conditions=MACHINE | {what: value})) == 1
    shown = capsys.readouterr().out
    assert f"{what} differ: kept ratios are from {MACHINE[what]}, these are from {value}" in shown
    assert run(kept, result(tmp_path / "now.json", {NAME: 1.5})) == 1
    assert "differ" not in capsys.readouterr().out


# What is kept ---------------------------------------------------------------------------------------------------------


def test_accepting_takes_over_what_is_given_and_leaves_the_rest(tmp_path, kept, capsys):
    now = result(tmp_path / "now.json", {NAME: 2.0, "a/b": 3.0, "a/c": 4.0})
    assert run(kept, now, "--accept", "--only", "a/") == 0
    found = gate.read_kept(kept)
    assert {name: each.ratio.value.median for name, each in found.items()} == {NAME: 1.0, "a/b": 3.0, "a/c": 4.0}
    assert "a/b: new → 3 (2.85–3.15)" in capsys.readouterr().out
    assert run(kept, now, "--accept") == 0
    assert f"{NAME}: 1 (0.95–1.05) → 2 (1.9–2.1)" in capsys.readouterr().out
    assert gate.read_kept(kept)[NAME] == gate.ratios_in([now])[NAME]
    assert json.loads(kept.read_text())["ratios"][NAME] | {"value": 0} == {
        "value": 0, "rounds": 100, "better": "lower", "from": "now.json", "date": "2026-11-16", "cpu": "Some CPU",
        "threads": "2",
    }  # fmt: skip


def test_only_narrows_what_is_compared(tmp_path, kept):
    now = result(tmp_path / "now.json", {NAME: 1.5, "a/b": 1.0})
    assert run(kept, now, "--accept", "--only", "a/") == 0
    assert (run(kept, now, "--only", "a/"), run(kept, now, "--only", "tiny"), run(kept, now)) == (0, 1, 1)


def test_the_ratios_of_the_repository_can_be_read():
    assert all(each.ratio.value.median > 0 for each in gate.read_kept(gate.RATIOS).values())


# Measuring ------------------------------------------------------------------------------------------------------------


class Suite:
    """Runs nothing: each script leaves the next of its made-up results, or none."""

    def __init__(self, **results):
        self.results, self.ran = results, []

    def __call__(self, command):
        script, file = Path(command[1]).stem, Path(command[command.index("--json") + 1])
        self.ran.append(script)
        made = self.results.get(script) or [{f"{script}/ratio": 1.0}]
        values = made[min(self.ran.count(script), len(made)) - 1]
        if values is not None:
            disturbed = values.pop("disturbed", False) if "disturbed" in values else False
            result(file, values, passed=None if disturbed else True)
        return 0


@pytest.fixture
def suite_kept(tmp_path, kept):
    values = {f"{script}/ratio": 1.0 for script in gate.SUITE}
    for name in values:
        file = result(tmp_path / f"{name.partition('/')[0]}.json", {name: values[name]})
        gate.accept(kept, gate.read_kept(kept) if name != "update/ratio" else {}, gate.ratios_in([file]))
    return kept


@pytest.mark.parametrize(
    ("results", "code", "again"),
    [
        ([{"update/ratio": 1.0}], 0, False),
        ([{"update/ratio": 1.5}, {"update/ratio": 1.0}], 0, True),
        ([{"update/ratio": 1.5}, {"update/ratio": 1.5}], 1, True),
        ([{"update/ratio": 1.5}, {"update/ratio": 1.0, "disturbed": True}], 1, True),
        ([{"update/ratio": 1.5}, None], 1, True),
        ([{"update/ratio": 1.5, "disturbed": True}], 0, False),
        ([None], 2, False),
    ],
)
def test_what_looks_slower_is_measured_once_again_and_nothing_else_is(suite_kept, results, code, again):
    suite = Suite(update=results)
    assert run(suite_kept, "--measure", run=suite) == code
    assert suite.ran == [*gate.SUITE, *(["update"] if again else [])]


def test_only_the_scripts_that_are_asked_for_are_run(suite_kept):
    for text, expected in (("training/ratio", ["training"]), ("up", ["update", "startup"]), ("nothing", [])):
        suite = Suite()
        assert run(suite_kept, "--measure", "--only", text, run=suite) == (0 if expected else 2)
        assert suite.ran == expected


def test_a_script_that_left_no_result_is_named(suite_kept, capsys):
    assert run(suite_kept, "--measure", run=Suite(training=[None])) == 2
    shown = capsys.readouterr()
    assert "training.py left no result" in shown.err
    assert "no result: training.py" in shown.out and "not measured: training/ratio" in shown.out


def test_every_script_of_the_suite_knows_what_it_is_told():
    for script, settings in gate.SUITE.items():
        source = (gate.HERE / f"{script}.py").read_text()
        assert [each for each in (*settings, "--json") if each.startswith("--") and f'"{each}"' not in source] == []


def test_a_script_runs_as_a_process_of_its_own_and_its_tables_are_not_shown(capfd):
    program = "import sys; print('a table'); print('how far', file=sys.stderr); sys.exit(3)"
    assert gate.run_script([gate.sys.executable, "-c", program]) == 3
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "how far\n")


# The command ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [None, "no json", '{"format": 1, "cases": []}', '{"format": 1, "ratios": {"a": 1}}']
)
def test_a_file_that_is_no_result_is_told_in_one_line(tmp_path, kept, capsys, content):
    file = tmp_path / "bad.json"
    if content is not None:
        file.write_text(content)
    assert run(kept, file) == 2
    assert capsys.readouterr().err.startswith("gate.py: ")


def test_results_that_contradict_each_other_or_are_no_ratios_are_refused(tmp_path, kept, capsys):
    first, second = (result(tmp_path / name, {NAME: 1.0}) for name in ("a.json", "b.json"))
    assert run(kept, first, second) == 2
    assert f"{NAME} is in a.json and in b.json" in capsys.readouterr().err
    assert run(kept, result(tmp_path / "c.json", {NAME: 0.0})) == 2
    assert "is above 0" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["a.json", "--measure"]])
def test_results_or_a_measurement_but_not_both(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        gate.main(arguments)
    assert ended.value.code == 2
    assert "give result files, or --measure" in capsys.readouterr().err


def test_help_helps(capsys):
    with pytest.raises(SystemExit) as ended:
        gate.main(["--help"])
    assert ended.value.code == 0
    assert "Exit code" in capsys.readouterr().out
