"""The logic of the choices benchmark, without timing anything: what is compared, how it is judged and told."""

import json
from dataclasses import replace

import choices
import pytest
import torch
from choices import CHOSEN, PLAIN, Result, Speed, Way, judge, result_text, ways

from emabank.bench import interleave
from emabank.bench.cases import Case
from emabank.bench.interleave import Spread
from emabank.study.recipe import HardwareConfig


def speed(way, over, first=1.0):
    return Speed(str(way), Spread(100 * over, 0, 0, 0), Spread(over, over, over, over), first)


def result(speeds, *, at_once=None, bystanders=0.0):
    return Result(Case("resnet8", 5, 1, 1, 20, None, 0, bystanders, ()), speeds, at_once)


def test_what_is_called_chosen_is_what_auto_chooses():
    hardware = HardwareConfig(device="cpu").completed()
    assert Way(hardware.channels_last, hardware.fused, hardware.compile, hardware.threads) == CHOSEN


def test_every_way_has_its_own_words_and_the_plain_one_is_among_them():
    every = ways(compile=True, threads=[1, 2])
    assert len({str(way) for way in every}) == len(every) == 10
    assert {PLAIN, CHOSEN} <= set(every)
    assert not any(way.compile for way in ways(compile=False, threads=[1]))


@pytest.mark.parametrize(
    ("other", "at_once", "bystanders", "expected"),
    [(1.2, 1.1, 0.0, [True, True]), (1.4, 0.9, 0.0, [False, False]), (1.2, 1.1, 0.5, [None, None])],
)
def test_auto_is_judged_by_the_fastest_way_of_one_thread_without_compilation(other, at_once, bystanders, expected):
    speeds = [speed(PLAIN, 1.0), speed(CHOSEN, 1.25), speed(Way(True, False), other), speed(Way(True, True, True), 9)]
    speeds.append(speed(Way(True, True, False, 2), 8))
    found = judge(result(speeds, at_once=Spread(at_once, 0, 0, 0), bystanders=bystanders))
    assert [verdict.passed for verdict in found] == expected


@pytest.mark.parametrize(("compiled", "words"), [(2.0, "after 30 steps"), (0.9, "never")])
def test_when_compiling_pays(compiled, words):
    # 1.28 s a step against 0.64 s: 19.2 s of compilation are 30 steps.
    speeds = [speed(PLAIN, 1.0), speed(CHOSEN, 1.0), speed(Way(True, True, True), compiled, first=19.2)]
    assert f"compiling pays {words}" in result_text(result(speeds))


def test_each_way_trains_as_it_says(monkeypatch):
    monkeypatch.setattr(choices, "BATCH", 4)
    monkeypatch.setattr(choices, "IMAGES", 20)
    parts = choices._parts()
    before = torch.get_num_threads()
    try:
        for way in (PLAIN, replace(CHOSEN, threads=2)):
            entrant, first = choices.contestant("resnet8", parts, way)
            torch.set_num_threads(1)
            entrant.before()
            assert torch.get_num_threads() == way.threads
            assert first > 0
            assert entrant.name == str(way)
    finally:
        torch.set_num_threads(before)


def test_the_command_prints_and_keeps_a_result(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(choices, "BATCH", 4)
    monkeypatch.setattr(choices, "IMAGES", 20)
    monkeypatch.setattr(interleave, "FEWEST_ROUNDS", 2)
    monkeypatch.setattr(interleave, "WARMUP_ROUNDS", 1)
    kept = tmp_path / "choices.json"
    command = ["--networks", "resnet8", "--threads", "1", "--seconds", "0.01", "--json", str(kept)]
    assert choices.main(command) == 0
    found = json.loads(kept.read_text())
    assert list(found["ratios"]) == ["choices/resnet8/chosen-over-plain"]
    assert "channels last, fused, 1 thread" in capsys.readouterr().out


def test_without_one_thread_there_is_nothing_to_compare_with(capsys):
    with pytest.raises(SystemExit):
        choices.main(["--threads", "2"])
    assert "add 1" in capsys.readouterr().err
