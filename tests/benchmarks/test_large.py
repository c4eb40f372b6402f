"""The logic of the benchmark of large models, on tiny ones: stages and their peaks, verdicts, what does not fit."""

import json
import subprocess
import sys
from dataclasses import replace

import large
import pytest
import torch
from large import Scale, Size, Stage, Weighed, judge, refuse_what_does_not_fit, save_and_load, size_of

from emabank import EMABank
from emabank.bench import interleave, zoo
from emabank.bench.interleave import Spread

SIZE = Size(parameters=10**9, largest=10**8, live=4 * 10**9)
ROOM = int(4e9 + 20e9 * 1.02)  # the model, five averages and 2 %


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(zoo.GPTS, 1, (64, 8, 16, 2, 1))
    monkeypatch.setattr(interleave, "FEWEST_ROUNDS", 2)
    monkeypatch.setattr(interleave, "WARMUP_ROUNDS", 1)
    monkeypatch.setattr(interleave, "BATCH_SECONDS", 0.01)
    monkeypatch.setattr(interleave, "last_level_cache_bytes", lambda: 2**20)


def weighed(*stages, live="float32", of_limit=1.05, bystanders=0.01):
    ratio = Spread(of_limit, of_limit, of_limit, of_limit)
    return Weighed(live, SIZE, 3 * 10**8, stages, ratio, ratio, 15, bystanders)


def test_a_model_is_counted_without_being_built():
    whole, half = size_of("gpt500m"), size_of("gpt500m-bf16")
    assert whole.parameters == half.parameters == 503_743_488
    assert (whole.live, half.live, whole.largest) == (4 * 503_743_488, 2 * 503_743_488, 50257 * 1536)
    assert whole.needed == whole.live + large.allowed(whole.parameters, 5) + 2 * whole.average
    assert half.compared == 2 * half.average + 8 * half.largest > 2 * whole.average


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process its peak, and lets it begin anew")
def test_a_stage_has_a_peak_of_its_own():
    scale = Scale()
    for mebibytes in (128, 32):
        with scale.stage(f"{mebibytes} MiB", 0):
            torch.ones(mebibytes * 2**18).sum()
    peaks = [(stage.peak - stage.resident) / 2**20 for stage in scale.stages]
    assert peaks == pytest.approx([128, 32], abs=10)
    with scale.stage("kept"):
        kept = torch.ones(64 * 2**18)
    assert (scale.stages[-1].resident - scale.stages[-2].resident) / 2**20 == pytest.approx(64, abs=10)
    assert len(kept) == 64 * 2**18


@pytest.mark.parametrize(
    ("peak", "beside", "expected"),
    [(ROOM, 0, True), (ROOM + 1, 0, False), (ROOM + 1, 100, True), (ROOM + 1, None, None)],
)
def test_a_stage_is_judged_by_its_peak_and_by_what_it_may_need(peak, beside, expected):
    found = [v for v in judge(weighed(Stage("updates", 1.0, 0, peak, beside))) if "updates:" in v.goal]
    assert [verdict.passed for verdict in found] == ([] if expected is None else [expected])


def test_all_has_to_stay_within_24_gib_and_near_the_limit():
    for peak, of_limit, bystanders, expected in (
        (25 * 10**9, 1.05, 0.0, [True, True]),
        (26 * 10**9, 1.15, 0.0, [False, False]),
        (25 * 10**9, 1.15, 0.4, [True, None]),
    ):
        found = judge(weighed(Stage("saved", 1.0, 0, peak), of_limit=of_limit, bystanders=bystanders))
        assert [verdict.passed for verdict in found] == expected
        assert "(saved)" in found[0].found
    assert len(judge(weighed(Stage("saved", 1.0, 0, 1), live="bfloat16"))) == 1  # no goal for its time


def test_what_does_not_fit_is_refused_in_a_sentence():
    refuse_what_does_not_fit(1000, SIZE, None)
    refuse_what_does_not_fit(1000, SIZE, 40 * 2**30)
    with pytest.raises(ValueError, match=r"need 31.* GiB, and 20.00 GiB of memory are free; .* --parameters"):
        refuse_what_does_not_fit(1000, SIZE, 20 * 2**30)


# In one process -------------------------------------------------------------------------------------------------------


def test_a_bank_is_saved_and_loaded_where_memory_and_disk_allow(tmp_path, monkeypatch):
    bank, size = EMABank(torch.nn.Linear(4, 4), [0.9], every=1), Size(20, 16, 80)
    scale = Scale()
    assert save_and_load(bank, scale, size, tmp_path) == []
    assert [stage.name for stage in scale.stages] == ["bank saved", "bank loaded"]
    assert list(tmp_path.iterdir()) == []
    assert "not asked for" in save_and_load(bank, scale, size, None)[0]
    enormous = replace(size, parameters=10**14)
    assert "are free" in save_and_load(bank, scale, enormous, tmp_path)[0]
    monkeypatch.setattr(large, "available_bytes", lambda: None)
    assert "give another --work" in save_and_load(bank, scale, enormous, tmp_path)[0]
    assert len(scale.stages) == 2


def test_an_average_that_stands_still_is_not_weighed(tiny):
    model = zoo.build("gpt1m")
    bank = EMABank(model, [0.9], every=1)
    with pytest.raises(RuntimeError, match="equals the live weights"):
        large.refuse_standing_still(model, bank.weights(0.9))
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    bank.update()
    large.refuse_standing_still(model, bank.weights(0.9))


@pytest.mark.parametrize("live", ["float32", "bfloat16"])
def test_the_command_weighs_every_stage_in_a_fresh_process(live, tiny, tmp_path, monkeypatch, capsys):
    commands = []

    def run(command, **given):  # in this process, for the time that a fresh one takes to begin
        commands.append(command)
        assert large.main(command[2:]) == 0
        return subprocess.CompletedProcess(command, 0, capsys.readouterr().out)

    monkeypatch.setattr(large.subprocess, "run", run)
    file, asked = tmp_path / "large.json", ["--parameters", "1", "--live", live, "--seconds", "0.01"]
    assert large.main([*asked, "--work", str(tmp_path), "--json", str(file)]) == 0
    kept, shown = json.loads(file.read_text()), capsys.readouterr().out
    (model,) = kept["models"]
    assert [stage["name"] for stage in model["stages"]] == [
        "model built", "bank built", "first update", "5 updates",
        "one average as a state dict", "one average applied", "bank saved", "bank loaded",
    ]  # fmt: skip
    assert (model["live"], model["rounds"] >= 2, commands[0][0]) == (live, True, sys.executable)
    assert (list(kept["ratios"]), len(kept["verdicts"])) == ([f"large/0m-{live}/of-limit"], 4 + 1 + (live == "float32"))
    assert "bank loaded" in shown and f"in {live}, 5 averages: within 24 GiB" in shown
    assert list(tmp_path.iterdir()) == [file]


def test_what_fails_is_told_in_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(large, "available_bytes", lambda: 10**6)
    assert large.main(["--parameters", "1"]) == 1
    assert "large.py: 1 million parameters with 5 averages need" in capsys.readouterr().err
    monkeypatch.setattr(large, "available_bytes", lambda: None)
    monkeypatch.setattr(large.subprocess, "run", lambda command, **given: subprocess.CompletedProcess(command, -9))
    assert large.main(["--parameters", "1", "--no-save"]) == 1
    assert "for want of memory" in capsys.readouterr().err


def test_help_helps(capsys):
    with pytest.raises(SystemExit) as ended:
        large.main(["--help"])
    assert ended.value.code == 0
    assert "17 GiB" in " ".join(capsys.readouterr().out.split())
