"""The recalibration benchmark on a few digits: what is drawn and kept, the curves, and which number is enough."""

import json
from dataclasses import replace

import pytest
import recalibration
import torch
from enough import Curve, Enough, Point, Score, Setting, curves_of, enough
from recalibration import Points, Subject, settings_of

from emabank.bench.interleave import Spread
from emabank.study.carry_out import Job, carry_out
from emabank.study.data.digits import digits_dataset
from emabank.study.data.splits import make_parts
from emabank.study.place import Place
from emabank.study.recipe import DataConfig

SMALL = ["--dataset", "digits", "--subset", "70", "--test", "30", "--epochs", "2", "--early", "1", "--threads", "1"]
SMALL += ["--averages", "1", "--draws", "2"]


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setattr(recalibration, "keep_memory", lambda: True)  # it would last for all tests
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def parts():
    return make_parts(digits_dataset(), trained_on="100%", subset=70, test_subset=30)


def setting(images, draw=0, augmented=False):
    return Setting("end", "slow", augmented, images, draw)


# What is drawn --------------------------------------------------------------------------------------------------------


def test_an_average_is_measured_as_it_is_with_all_images_and_with_fewer():
    subject = Subject("end", "slow", torch.nn.Identity())
    found = list(settings_of(subject, total=5000, draws=3, augment=True))
    assert found[:2] == [setting(0), setting(5000)]
    sizes = [32, 64, 128, 256, 512, 1024, 2048]
    plain = [setting(size, draw) for size in sizes for draw in range(3)] + [setting(4096, draw) for draw in (0, 1)]
    assert found[2 : 2 + len(plain)] == plain
    augmented = [setting(size, draw, True) for size in (5000, *sizes, 4096) for draw in (0, 1)]
    assert found[2 + len(plain) :] == augmented
    recomputed = list(settings_of(subject._replace(averaged=False), total=40, draws=1, augment=False))
    assert recomputed == [setting(40), setting(32)]


def test_draws_differ_and_are_the_same_with_augmentation(parts):
    first, second = (recalibration.images_of(setting(32, draw), parts.train) for draw in (0, 1))
    again = recalibration.images_of(setting(32, 0, augmented=True), parts.train)
    assert torch.equal(first.images, again.images)
    assert not torch.equal(first.images, second.images)
    assert len(first.images.flatten(1).unique(dim=0)) == 32
    assert recalibration.images_of(setting(70), parts.train) is parts.train


def test_batches_are_of_128_images_or_all_at_once(parts, monkeypatch):
    data = DataConfig(dataset="digits", crop=1, flip=True)
    monkeypatch.setattr(recalibration, "BATCH", 30)
    sizes = {
        (images, augmented): [len(labels) for _, labels in batches]
        for images in (20, 70)
        for augmented in (False, True)
        for batches in [recalibration.batches_of(setting(images, 0, augmented), parts, data)]
    }
    assert sizes == {(20, False): [20], (20, True): [20], (70, False): [30, 30, 10], (70, True): [30, 30, 10]}
    plain, moved = (
        next(iter(recalibration.batches_of(setting(20, 0, augmented), parts, data)))[0] for augmented in (False, True)
    )
    assert plain.shape == moved.shape
    assert not torch.equal(plain.flatten(1).sort(0).values, moved.flatten(1).sort(0).values)


def test_what_was_measured_is_there_again_but_for_a_line_that_was_cut_short(tmp_path):
    file = tmp_path / "work" / "points.jsonl"
    points = Points(file)
    points.add(setting(32), Score(0.5, 1.0))
    points.add(setting(64, 1, True), Score(0.25, 2.0))
    file.write_text(file.read_text()[:-3])
    assert Points(file).found == {setting(32): Score(0.5, 1.0)}
    Points(file).add(setting(128), Score(0.75, 0.5))
    assert Points(file).found == {setting(32): Score(0.5, 1.0), setting(128): Score(0.75, 0.5)}


# Curves ---------------------------------------------------------------------------------------------------------------


def test_a_curve_is_of_differences_from_all_images_without_augmentation():
    found = {
        setting(0): Score(0.3, 3.0),
        setting(100): Score(0.8, 1.0),
        setting(32, 0): Score(0.6, 1.5),
        setting(32, 1): Score(0.7, 1.25),
        setting(100, 0, True): Score(0.9, 0.5),
    }
    plain, augmented = curves_of(found, total=100, tested=400)
    assert (plain.accuracy, plain.loss, plain.standard_error) == pytest.approx((0.8, 1.0, 0.02))
    assert plain.own == pytest.approx((-0.5, 2.0))
    assert [(point.images, point.draws) for point in plain.points] == [(32, 2), (100, 1)]
    assert plain.points[0].accuracy.mean == pytest.approx(-0.15)
    assert plain.points[0].worst == pytest.approx(-0.2)
    assert plain.points[0].loss.median == pytest.approx(0.375)
    assert plain.points[1].accuracy.mean == 0
    assert augmented.points[0].accuracy.mean == pytest.approx(0.1)
    assert curves_of({k: v for k, v in found.items() if k.images}, total=100, tested=400)[0].own is None


def curve(*points, error=0.01, augmented=False):
    zero = Spread(0, 0, 0, 0)
    made = [Point(n, 2, Spread(mean, mean, mean, mean), worst, zero) for n, mean, worst in points]
    return Curve("end", "slow", augmented, 0.8, 1.0, error, None, [*made, Point(512, 1, zero, 0, zero)])


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(32, -0.02, -0.03), (64, -0.0009, -0.02), (128, -0.0005, -0.009)], (64, 128, 128)),
        ([(32, 0.01, 0.0), (64, 0.01, 0.0), (128, 0.01, 0.0)], (32, 32, 32)),
        ([(32, 0.0, 0.0), (64, -0.002, 0.0), (128, 0.0, 0.0)], (128, 32, 128)),
        ([(32, 0.0, 0.0), (64, 0.0, 0.0), (128, -0.01, -0.02)], (None, None, None)),
    ],
)
def test_enough_is_the_fewest_from_which_on_all_is_well(points, expected):
    found = enough([curve(*points)], augmented=False)
    assert (found.mean, found.worst, found.both) == expected
    verdict = recalibration.judge([found], 512)
    assert verdict.passed is (expected[2] is not None)


def test_every_average_has_to_do_well_and_augmentation_is_judged_apart():
    good, bad = [(32, 0.0, 0.0), (64, 0.0, 0.0)], [(32, -0.1, -0.1), (64, 0.0, 0.0)]
    curves = [curve(*good), curve(*bad), curve(*good, augmented=True)]
    assert enough(curves, augmented=False).both == 64
    assert enough(curves, augmented=True).both == 32
    assert enough([curve((32, 0.0, -0.015)), curve((32, 0.0, -0.015), error=0.02)], augmented=False).worst is None


def test_curves_and_what_they_come_to_are_told():
    told = replace(curve((32, -0.02, -0.03)), own=Score(-0.1, 0.5))
    text = recalibration.curve_table(told)
    for words in ("slow, end, without augmentation", "80.00 %", "-10.00 points, loss +0.5000", "-2.000", "-3.00"):
        assert words in text
    assert "without recalibration" not in recalibration.curve_table(curve((32, -0.02, -0.03)))
    assert "from all 512 images on" in recalibration.enough_text(Enough(False, None, 64, None), 512)


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_trains_measures_and_keeps_and_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    command = [*SMALL, "--work", str(tmp_path / "work")]
    real, calls = recalibration.measure, []

    def measure(*given):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(given)
        return real(*given)

    monkeypatch.setattr(recalibration, "measure", measure)
    assert recalibration.main(command) == 130
    assert "the same command goes on from there" in capsys.readouterr().err
    monkeypatch.setattr(recalibration, "measure", real)
    monkeypatch.setattr(recalibration.Training, "run", None)  # it is trained already
    file = tmp_path / "recalibration.json"
    assert recalibration.main([*command, "--json", str(file)]) == 0
    monkeypatch.setattr(recalibration, "measure", None)  # all is measured already
    kept, first = json.loads(file.read_text()), capsys.readouterr().out
    assert recalibration.main(command) == 0
    second = capsys.readouterr().out
    assert first.split("ema-", 1)[1] == second.split("ema-", 1)[1] + f"kept in {file}\n"
    assert [each["stage"] for each in kept["curves"]] == ["epoch 1 of 2", "epoch 2 of 2"]
    assert [(p["images"], p["draws"]) for p in kept["curves"][0]["points"]] == [(32, 2), (64, 2), (70, 1)]
    assert kept["curves"][0]["own"].keys() == {"accuracy", "loss"}
    assert kept["enough"][0]["augmented"] is False
    assert kept["conditions"]["test_images"] == 30
    full = kept["curves"][1]
    assert full["points"][-1]["accuracy"]["mean"] == 0
    assert 0 < full["accuracy"] <= 1


def finished_run(folder, **changes):
    asked = recalibration.arguments([*SMALL, "--work", str(folder)])
    config = replace(recalibration.run_config(asked, digits_dataset()), **changes)
    return carry_out(Job(config), Place(runs=folder), digits_dataset())


def test_averages_of_a_finished_run_are_taken_and_its_folder_stays_as_it_was(tmp_path, capsys):
    run = finished_run(tmp_path / "runs", trained_on="80%")
    files = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    asked = ["--run", str(run.path), "--test", "30", "--draws", "1", "--work", str(tmp_path / "work"), "--threads", "1"]
    assert recalibration.main(asked) == 0
    shown = capsys.readouterr().out
    assert "ema-7.1%, epoch" in shown
    assert "ema-" in shown.replace("ema-7.1%", "")
    assert "without recalibration" in shown
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == files


def test_what_is_wrong_is_told_in_one_sentence(tmp_path, monkeypatch, capsys):
    work = ["--work", str(tmp_path / "work")]
    lone = finished_run(tmp_path / "runs")
    for asked, sentence in (
        (["--run", str(tmp_path)], "is no finished run"),
        (["--run", str(lone.path), "--test", "30"], "has kept no average"),
        ([*SMALL, "--early", "2"], "--early is 2; give an epoch from 1 on, before the last of 2"),
        ([*SMALL, "--draws", "0"], "--draws and --threads take numbers from 1 on"),
        (["--data", str(tmp_path)], "holds neither"),
    ):
        assert recalibration.main([*asked, *work]) == 1
        error = capsys.readouterr().err
        assert error.startswith("recalibration.py: ")
        assert sentence in error
        assert error.count("\n") == 1
    monkeypatch.setattr(recalibration, "fingerprint", lambda dataset: "another")
    assert recalibration.main(["--run", str(lone.path), "--test", "30", *work]) == 1
    assert "was trained on other data than" in capsys.readouterr().err


def test_help_helps(capsys):
    with pytest.raises(SystemExit) as ended:
        recalibration.main(["--help"])
    assert ended.value.code == 0
    assert "--no-augmentation" in capsys.readouterr().out
