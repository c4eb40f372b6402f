"""The evaluation benchmark as a command, with tiny cases: verdicts that go both ways, what it keeps, its sentences."""

import json
import multiprocessing

import evaluation
import pytest
import torch

from emabank.bench import interleave
from emabank.bench.cases import Case
from emabank.bench.evaluation import APPLIED, SHARED, Passes, ways_of
from emabank.bench.interleave import Run


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setattr(evaluation, "keep_memory", lambda: True)  # it would last for all tests
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("other", "bystanders", "passed"), [(1.2, 0.01, True), (0.985, 0.01, True), (0.97, 0.01, False), (1.2, 0.3, None)]
)
def test_the_shared_pass_is_judged_by_the_fastest_other_way_and_a_tie_counts(other, bystanders, passed):
    ways = ways_of(Run({"slow": [9.0], SHARED: [1.0], APPLIED: [other]}, 0, bystanders))
    case = Case("resnet8", 5, 100, 3, 1, None, 0, bystanders, ())
    verdict = evaluation.judge(Passes("evaluation", case, "batches in memory", 512, 128, 1, True, ways))
    assert verdict.passed is passed
    assert APPLIED in verdict.found


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_the_command_prints_and_keeps_a_result_and_leaves_no_worker(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(interleave, "FEWEST_ROUNDS", 2)
    monkeypatch.setattr(interleave, "WARMUP_ROUNDS", 1)
    file = tmp_path / "evaluation.json"
    small = ["--networks", "resnet8", "--seconds", "0.01", "--images", "4", "--averages", "2"]
    assert evaluation.main([*small, "--sources", "memory", "1", "--json", str(file)]) == 0
    kept, shown = json.loads(file.read_text()), capsys.readouterr().out
    assert "evaluation of live weights and 2 averages, DataLoader, 1 worker" in shown
    assert [(each["task"], each["source"], len(each["ways"])) for each in kept["results"]] == [
        ("evaluation", "batches in memory", 4),
        ("evaluation", "DataLoader, 1 worker", 4),
        ("recalibration", "batches in memory", 2),
        ("recalibration", "DataLoader, 1 worker", 2),
    ]
    assert len(kept["verdicts"]) == len(kept["ratios"]) == 4
    assert kept["conditions"]["memory"] == "kept by the process"
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1), (None, 1)])
def test_check_is_an_exit_code(monkeypatch, passed, code):
    case = Case("resnet8", 5, 100, 3, 1, None, 0, None if passed is not None else 0.5, ())
    ways = ways_of(Run({SHARED: [1.0], APPLIED: [1.2 if passed else 0.9]}, 0, 0.0))
    result = Passes("evaluation", case, "batches in memory", 512, 128, 1, True, ways)
    monkeypatch.setattr(evaluation, "measure", lambda *asked: result)
    assert evaluation.main(["--networks", "resnet8", "--sources", "memory", "--check"]) == code


def test_what_is_wrong_is_told_in_one_sentence(tmp_path, capsys):
    assert evaluation.main(["--data", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"evaluation.py: {tmp_path} holds neither ")
    with pytest.raises(SystemExit):
        evaluation.main(["--sources", "disk"])
    assert "'disk' is no source of batches; give memory, or a number of workers" in capsys.readouterr().err


def test_help_helps(capsys):
    with pytest.raises(SystemExit) as ended:
        evaluation.main(["--help"])
    assert ended.value.code == 0
    assert "--plain-malloc" in capsys.readouterr().out
