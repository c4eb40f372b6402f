"""The logic of the study benchmark, without timing anything: turns, whose processor time counts, what is kept."""

import json
import sys
from contextlib import nullcontext

import pytest
import study_time
from study_time import AllButOurs, Measured, Measurement, Took, fingerprint, in_turns, judge, result_of, run_command

ORPHAN = """
import os, time
if os.fork() == 0:
    begin = time.process_time()
    while time.process_time() - begin < 0.4:
        pass
    os._exit(0)
print("the parent does not wait")
"""


def measurement(jobs, seconds, *, turn=0, busy=10.0, bystanders=0.01, runs=("a", "b")):
    return Measurement(jobs, turn, Took(seconds, busy, bystanders), list(runs), "today")


@pytest.fixture
def commands(monkeypatch):
    """Every command that would be run; each trains two runs, in ten seconds with one job and six with two."""
    given = []

    def run(command, log, *, tell):
        given.append(command)
        tell()
        jobs, runs = int(command[command.index("--jobs") + 1]), command[command.index("--runs") + 1]
        for name in ("a", "b"):
            folder = study_time.Path(runs, name)
            folder.mkdir()
            (folder / "done.json").write_text(json.dumps({"files": {}}))
        study_time.Path(runs, "c").mkdir()  # one that has not come to its end
        return Took(10.0 if jobs == 1 else 6.0, 10.0, 0.01)

    monkeypatch.setattr(study_time, "run_command", run)
    return given


def test_turns_go_to_and_fro():
    assert [jobs for _, jobs in in_turns(2)] == [1, 2, 2, 1]
    assert in_turns(3)[-2:] == [(2, 1), (2, 2)]


# Processes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("everyone", "ours", "expected"), [(0.5, 8.0, 0.1), (0.5, 30.0, 0.0), (None, 8.0, None)])
def test_processes_of_ours_are_no_bystanders(everyone, ours, expected, monkeypatch):
    class Watched:
        def share(self):
            return everyone

    seconds, spent = iter([0.0, 10.0]), iter([100.0, 100.0 + ours])
    monkeypatch.setattr(study_time.os, "cpu_count", lambda: 2)
    watch = AllButOurs(watch=lambda neighbour: Watched(), clock=lambda: next(seconds), ours=lambda: next(spent))
    assert watch.share() == (expected if expected is None else pytest.approx(expected))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")
@pytest.mark.parametrize("adopts", [True, False])
def test_the_time_of_a_process_that_its_parent_did_not_wait_for_counts(tmp_path, monkeypatch, adopts):
    if not adopts:
        monkeypatch.setattr(study_time, "adopting", nullcontext)
    took = run_command([sys.executable, "-S", "-c", ORPHAN], tmp_path / "log")
    assert (took.processor_seconds > 0.38) is adopts
    assert took.seconds > 0 and (tmp_path / "log").read_text() == "the parent does not wait\n"


def test_a_command_that_fails_is_told_with_its_last_line(tmp_path):
    command = [sys.executable, "-S", "-c", "print('first'); raise SystemExit('no such study')"]
    with pytest.raises(RuntimeError, match=r"exit code 1: no such study \(all of it: .*log\)"):
        run_command(command, tmp_path / "log")


# What is kept ---------------------------------------------------------------------------------------------------------


def test_what_was_measured_is_not_measured_again(tmp_path, commands):
    measured = Measured(tmp_path, "transfer", 1, "mark")
    first = measured(0, 1)
    assert (first.runs, len(commands), commands[0][-2:]) == (["a", "b"], 1, ["--seeds", "1"])
    assert measured(0, 1) == first and len(commands) == 1
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]  # the runs themselves are gone
    for other in (Measured(tmp_path, "transfer", 1, "another mark"), Measured(tmp_path, "dynamics", 1, "mark")):
        other(0, 1)
    measured(1, 1)
    assert len(commands) == 4


def test_a_measurement_that_was_cut_short_begins_afresh(tmp_path, commands):
    left = tmp_path / "transfer-mark-turn1-jobs1.runs" / "z"
    left.mkdir(parents=True)
    (left / "done.json").write_text('{"files": {}}')
    (tmp_path / "transfer-mark-turn1-jobs1.json").write_text('{"jobs": 1')
    assert Measured(tmp_path, "transfer", None, "mark")(0, 1).runs == ["a", "b"]


def test_only_disturbed_measurements_are_made_again_and_only_if_asked(tmp_path, commands, monkeypatch):
    measured = Measured(tmp_path, "transfer", None, "mark")
    measured(0, 1)
    assert measured(0, 1, again=True).took.bystanders == 0.01 and len(commands) == 1
    monkeypatch.setattr(study_time, "QUIET_SHARE", 0.001)
    measured(0, 1)
    assert len(commands) == 1
    measured(0, 1, again=True)
    assert len(commands) == 2


def test_another_code_has_another_fingerprint(tmp_path):
    (tmp_path / "a.py").write_text("one")
    before = fingerprint("torch 2", package=tmp_path)
    assert before == fingerprint("torch 2", package=tmp_path) != fingerprint("torch 3", package=tmp_path)
    (tmp_path / "a.py").write_text("two")
    assert before != fingerprint("torch 2", package=tmp_path)


# From measurements to numbers -----------------------------------------------------------------------------------------


def test_the_speed_up_is_taken_turn_by_turn():
    found = result_of(
        "all",
        [
            measurement(1, 10.0, busy=9.0),
            measurement(2, 5.0, busy=9.9),
            measurement(2, 10.0, turn=1, busy=9.9),
            measurement(1, 20.0, turn=1, busy=9.0, bystanders=None),
        ],
    )
    assert (found.runs, found.turns, found.bystanders) == (2, 2, 0.01)
    assert (found.speed_up.median, found.speed_up.high) == (2.0, 2.0)
    assert found.dearer.mean == pytest.approx(1.1)
    assert found.cores_busy[2].median == pytest.approx((9.9 / 5 + 9.9 / 10) / 2)
    text = study_time.result_text(found)
    assert "2 runs trained" in text and "7.5" in text  # seconds a run with one job


def test_measurements_of_different_runs_are_not_compared():
    for runs in (("a",), ()):
        with pytest.raises(RuntimeError, match="the same runs"):
            result_of("all", [measurement(1, 10.0, runs=runs), measurement(2, 5.0, runs=("a", "b") if runs else runs)])


@pytest.mark.parametrize(("two", "bystanders", "expected"), [(5.0, 0.0, True), (8.0, 0.0, False), (5.0, 0.2, None)])
def test_the_speed_up_is_judged(two, bystanders, expected):
    found = result_of("all", [measurement(1, 10.0), measurement(2, two, bystanders=bystanders)])
    assert [verdict.passed for verdict in judge(found)] == [expected]


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_goes_on_where_it_was_interrupted_and_keeps_a_result(tmp_path, commands, monkeypatch, capsys):
    file, asked = tmp_path / "study.json", ["--study", "transfer", "--work", str(tmp_path / "work")]
    run = study_time.run_command

    def interrupted(command, log, *, tell):
        if len(commands) == 3:
            raise KeyboardInterrupt
        return run(command, log, tell=tell)

    monkeypatch.setattr(study_time, "run_command", interrupted)
    assert study_time.main(asked) == 130
    assert "goes on" in capsys.readouterr().err
    monkeypatch.setattr(study_time, "run_command", run)
    assert study_time.main([*asked, "--json", str(file), "--check"]) == 0
    assert [command[command.index("--jobs") + 1] for command in commands] == ["1", "2", "2", "1"]
    kept, shown = json.loads(file.read_text()), capsys.readouterr().out
    assert "two jobs are 1.67" in shown and "PASS" in shown
    assert kept["ratios"]["study/transfer/two-jobs-speed-up"]["value"]["median"] == pytest.approx(10 / 6)
    assert (kept["result"]["runs"], len(kept["measurements"])) == (2, 4)


def test_what_fails_is_told_in_one_sentence(tmp_path, monkeypatch, capsys):
    def fail(*given, **more):
        raise RuntimeError("it ended")

    monkeypatch.setattr(study_time, "run_command", fail)
    assert study_time.main(["--work", str(tmp_path)]) == 1
    assert capsys.readouterr().err.endswith("study_time.py: it ended\n")
    with pytest.raises(SystemExit):
        study_time.main(["--repeats", "0"])
    assert "give 1 or more" in capsys.readouterr().err


def test_help_helps(capsys):
    with pytest.raises(SystemExit) as ended:
        study_time.main(["--help"])
    assert ended.value.code == 0
    assert "25 minutes" in capsys.readouterr().out
