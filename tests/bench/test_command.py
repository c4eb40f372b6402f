"""`emabank bench`: what it is told, what it measures, what it says."""

import json
from typing import get_args

import pytest

from emabank.bench import command, zoo
from emabank.bench.cases import Case, Row
from emabank.bench.evaluation import SHARED, Passes, Way
from emabank.bench.interleave import Spread
from emabank.bench.peers import BANK, LIMIT
from emabank.bench.steps import Share, Steps
from emabank.cli import main
from emabank.study.arguments import BenchArguments, BenchModel


def spread(value):
    return Spread(value, value, value, value)


def case(*, bystanders=0.0):
    rows = [
        Row(LIMIT, spread(1.0), spread(1.0), spread(0.5)),
        Row(BANK, spread(2.0), spread(1.25), spread(1.0)),
        Row("slow", spread(9.0), spread(9.0), spread(4.5)),
    ]
    return Case("resnet20", 5, 100, 3, 20, None, 0, bystanders, rows)


def test_the_models_it_offers_are_there():
    assert set(get_args(BenchModel)) <= set(zoo.names())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"averages": 0}, "averages is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"batch": 1}, "batch is 1"),
        ({"seconds": 0}, "seconds is 0"),
        ({"models": ()}, "models is empty"),
        ({"what": ()}, "what is empty"),
        ({"device": "tpu"}, "device is 'tpu'"),
    ],
)
def test_what_makes_no_sense_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        BenchArguments(**given)


def test_tables_come_to_sentences_and_ratios():
    steps = Steps(case(), "128 images", spread(10.0), [Share(BANK, spread(0.1), spread(0.016))])
    ways = [Way(SHARED, spread(5.0), spread(1.0)), Way("each alone", spread(6.0), spread(1.2))]
    passes = Passes("recalibration", case(), "batches in memory", 128, 128, 1, True, ways)
    first, second, third = command.sentences([case()], [steps], [passes])
    assert third == "resnet20, 5 averages: recalibration in one shared pass; each alone, takes 1.20 × as long."
    assert "2 ms, 1.25 × the time that moving its memory takes; slow" in first
    assert "takes 4.50 × as long" in first
    assert "1.60%" in second and "0.1000% when made every 16 steps" in second
    assert [(ratio.name, ratio.value.median) for ratio in command.ratios_of([case()], [steps])] == [
        ("update/resnet20/5/of-limit", 1.25),
        ("update/resnet20/5/faster-than-peers", 4.5),
        ("overhead/resnet20/5/of-step", 0.016),
    ]
    assert "measure again on an idle machine" in command.sentences([case(bystanders=0.4)], [], [])[-1]


def test_the_command_measures_shows_and_keeps(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("emabank.bench.interleave.FEWEST_ROUNDS", 2)
    monkeypatch.setattr("emabank.bench.interleave.WARMUP_ROUNDS", 1)
    kept = tmp_path / "bench.json"
    words = ["bench", "--models", "small1000", "--averages", "2", "--what", "update", "--seconds", "0.01"]
    assert main([*words, "--device", "cpu", "--json", str(kept)]) == 0
    printed = capsys.readouterr().out
    assert "small1000, 2 averages: 136,000 elements in 1000 tensors" in printed
    assert "an update takes" in printed
    assert "update/small1000/2/of-limit" in json.loads(kept.read_text())["ratios"]


def test_passes_are_measured_of_networks_alone(monkeypatch, capsys):
    ways = [Way(SHARED, spread(5.0), spread(1.0)), Way("each alone", spread(6.0), spread(1.2))]
    asked = []

    def measured(task, network, **settings):
        asked.append((task, network, settings["averages"]))
        return Passes(task, case(), "batches in memory", 128, 128, 1, True, ways)

    monkeypatch.setattr(command, "measure_passes", measured)
    words = ["--models", "resnet20", "small1000", "--averages", "2", "--what", "evaluation", "recalibration"]
    assert main(["bench", *words, "--device", "cpu"]) == 0
    assert asked == [("evaluation", "resnet20", 2), ("recalibration", "resnet20", 2)]


def test_a_device_that_is_not_there_is_told_in_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    assert main(["bench", "--device", "cuda"]) == 1
    assert capsys.readouterr().err == "emabank: device is cuda, which torch does not find here; there is cpu alone\n"
