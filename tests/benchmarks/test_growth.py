"""The logic of the growth benchmark, without timing anything: series, verdicts, rounds, what a point does."""

import json

import growth
import pytest
import torch
from growth import Series, judge, one_epoch, run_protocols, series_of, training_with
from recipes import cifar_like
from study_time import Took

from emabank.bench import interleave, zoo
from emabank.bench.interleave import Run
from emabank.study.data.splits import make_parts

SIZES = [1.0, 2.0, 4.0, 8.0]


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def series(exponent, *, fixed=3.0, bystanders=0.01, judged=True) -> Series:
    times = {f"{x:g}": [factor * (fixed + x**exponent) for factor in (1, 2, 3)] for x in SIZES}
    sizes = {f"{x:g}": x for x in reversed(SIZES)}
    return series_of("runs", "a protocol", "runs", Run(times, 0, bystanders), sizes, judged=judged)


# Series ---------------------------------------------------------------------------------------------------------------


def test_a_series_is_in_order_and_its_ratios_are_taken_within_a_round():
    found = series(1.0)
    assert [point.x for point in found.points] == SIZES
    assert [point.seconds.median for point in found.points] == [8, 10, 14, 22]
    assert (found.rounds, found.growth.low, found.growth.high) == (3, 11 / 4, 11 / 4)
    assert (found.exponents.low, found.exponents.high) == pytest.approx((1, 1))
    text = growth.series_text(found)
    assert "line: 6 s + 2 s × runs, R² 1.0000" in text and "exponent 1.00 (1 (1–1) by round)" in text


@pytest.mark.parametrize(
    ("exponent", "bystanders", "expected"), [(0.8, 0.0, True), (1.0, 0.0, True), (1.3, 0.0, False), (1.0, 0.3, None)]
)
def test_the_marginal_cost_is_judged(exponent, bystanders, expected):
    (verdict,) = judge(series(exponent, bystanders=bystanders))
    assert verdict.passed is expected
    assert f"p = {exponent:.2f}" in verdict.found
    assert judge(series(exponent, judged=False)) == []


# Protocols ------------------------------------------------------------------------------------------------------------


def protocols(shares, rounds=3):
    """What comes of rounds of which each has one of these shares of bystanders, and in which order all was done."""
    done = []

    def one(rates, seeds):
        done.append((rates, seeds))
        share = shares[(len(done) - 2) // 3] if len(done) > 1 else 0.9  # the first is not counted
        return Took(float(rates * seeds), 0.0, share), rates * seeds + seeds

    return run_protocols([(1, 1), (4, 1), (1, 2)], one, rounds=rounds), done


def test_every_protocol_is_carried_out_once_a_round_in_another_order():
    (run, runs), done = protocols([0.0] * 3)
    assert run.times == {"1 rates, 1 seeds": [1] * 3, "4 rates, 1 seeds": [4] * 3, "1 rates, 2 seeds": [2] * 3}
    assert runs == {"1 rates, 1 seeds": 2, "4 rates, 1 seeds": 5, "1 rates, 2 seeds": 4}
    orders = [tuple(done[at : at + 3]) for at in range(1, 10, 3)]
    assert all(sorted(order) == [(1, 1), (1, 2), (4, 1)] for order in orders) and len(set(orders)) > 1
    assert (run.dropped, run.bystanders) == (0, 0.0)


def test_rounds_of_protocols_that_others_disturb_are_made_up_for():
    (run, _), _ = protocols([0.0, 0.5, 0.0, 0.5, 0.01])
    assert (run.dropped, run.bystanders, len(run.times["1 rates, 1 seeds"])) == (2, 0.01, 3)
    (run, _), done = protocols([0.5] * 6)
    assert (run.dropped, run.bystanders, len(done)) == (0, 0.5, 1 + 3 * 6)


def test_a_protocol_is_run_in_a_fresh_folder_and_its_runs_are_counted(monkeypatch):
    seen = []

    def run(command, log):
        seen.append(command)
        for name in ("a", "b"):
            folder = growth.Path(command[-1], name)
            folder.mkdir(parents=True)
            (folder / "done.json").write_text('{"files": {}}')
        return Took(1.0, 1.0, 0.0)

    monkeypatch.setattr(growth, "run_command", run)
    assert growth.one_protocol(8, 2, epochs=3) == (Took(1.0, 1.0, 0.0), 2)
    rates = seen[0][seen[0].index("--rates") + 1 : seen[0].index("--seeds")]
    assert (len(set(rates)), seen[0][seen[0].index("--epochs") + 1]) == (8, "3")
    assert not growth.Path(seen[0][-1]).exists()


# Points ---------------------------------------------------------------------------------------------------------------


def test_an_epoch_trains_once_through_the_images_and_evaluates_every_average():
    parts = make_parts(cifar_like(40), subset=40)
    training = training_with(3, parts)
    for epoch in (1, 2):
        one_epoch(training)
        assert (training.epoch, training.steps, training.bank.num_updates) == (epoch, epoch, epoch)
        measured = {each.weights for each in training.measured if each.epoch == epoch and each.split == "val"}
        assert measured == {"live", *training.bank.names} and len(measured) == 4
    training.diverged = True
    with pytest.raises(RuntimeError, match="would mean nothing"):
        one_epoch(training)


@pytest.mark.parametrize(("free", "expected"), [(None, [1, 4, 16, 64]), (10**12, [1, 4, 16, 64]), (10**9, [1, 4, 16])])
def test_the_largest_models_are_left_out_where_memory_is_short(free, expected):
    assert growth.fitting([64, 1, 16, 4], free) == expected


def test_a_gpt_is_as_large_as_it_says():
    with torch.device("meta"):
        for millions in zoo.GPTS:
            count = sum(parameter.numel() for parameter in zoo.gpt(millions).parameters())
            assert count / 1e6 == pytest.approx(millions, rel=0.08)
            assert f"gpt{millions}m" in zoo.names()
    with pytest.raises(ValueError, match="there is no GPT of 3 million"):
        zoo.gpt(3)


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_prints_and_keeps_every_point(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(interleave, "FEWEST_ROUNDS", 2)
    monkeypatch.setattr(interleave, "WARMUP_ROUNDS", 1)
    monkeypatch.setattr(interleave, "BATCH_SECONDS", 0.01)
    monkeypatch.setattr(interleave, "last_level_cache_bytes", lambda: 2**20)
    monkeypatch.setattr(growth, "AVERAGES", (1, 2, 4))
    monkeypatch.setattr(zoo, "GPTS", {1: (64, 8, 16, 2, 1), 4: (64, 8, 32, 2, 1), 16: (64, 8, 64, 2, 1)})
    monkeypatch.setitem(zoo.ZOO, "resnet18", lambda: torch.nn.Linear(30, 30))
    took = {rates: Took(3.0 + rates, 0.0, 0.0) for rates in range(1, 99)}
    monkeypatch.setattr(growth, "one_protocol", lambda rates, seeds, epochs: (took[rates * seeds], rates + seeds))
    file = tmp_path / "growth.json"
    small = ["--seconds", "0.01", "--images", "40", "--millions", "1", "4", "16", "--rounds", "1"]
    assert growth.main([*small, "--json", str(file)]) in (0, 1)
    kept, shown = json.loads(file.read_text()), capsys.readouterr().out
    names = [series["name"] for series in kept["series"]]
    assert names == ["runs", "seeds", "averages", "epochs", "parameters", "parameters-warm"]
    assert [point["x"] for point in kept["series"][0]["points"]] == [2, 3, 5, 9]
    assert all(set(point["seconds"]) == {"median", "low", "high", "mean"} for point in kept["series"][2]["points"])
    assert len(kept["verdicts"]) == 5 and "growth/parameters/largest-over-smallest" in kept["ratios"]
    assert shown.count("R²") == 6


def test_what_fails_and_what_shows_nothing_is_told_in_one_sentence(monkeypatch, capsys):
    def fail(asked):
        raise RuntimeError("it ended")

    monkeypatch.setattr(growth, "MEASURES", {"protocols": fail})
    assert growth.main(["--series", "protocols"]) == 1
    assert capsys.readouterr().err == "growth.py: it ended\n"
    with pytest.raises(SystemExit):
        growth.main(["--millions", "1", "4"])
    assert "three sizes" in capsys.readouterr().err


def test_help_helps(capsys):
    with pytest.raises(SystemExit) as ended:
        growth.main(["--help"])
    assert ended.value.code == 0
    assert "12 minutes" in " ".join(capsys.readouterr().out.split())
