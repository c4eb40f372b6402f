"""Several processes at once: on one study, one run, a report during training, one folder of snapshots."""

import re
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from emabank import EMABank
from emabank.selection import BestTracker
from tests.torture.faults import LONG, Child, difference, faults, files_in, undisturbed, wait_for_workers


def test_of_two_processes_on_one_run_one_trains_and_the_other_names_it(tmp_path: Path) -> None:
    with faults("together: one run, short") as count:
        children = [Child("training", tmp_path / "runs") for _ in range(2)]
        codes = [child.wait() for child in children]
        output = children[0].output.read_text()  # both write there
        assert sorted(codes) in ([0, 0], [0, 75]), output
        if 75 in codes:
            assert "is in use by process" in output and "; wait until it has ended, or end it" in output
        assert difference(files_in(tmp_path / "runs"), files_in(undisturbed("training"))) == []
        count.count(processes=2, lost=0)


@LONG
def test_many_processes_on_one_run_write_the_files_of_one(tmp_path: Path) -> None:
    with faults("together: one run") as count:
        for number in range(20):
            place = tmp_path / str(number)
            children = [Child("training", place) for _ in range(4)]
            time.sleep(count.random.uniform(0, 1))
            count.count(faults=children[count.random.randrange(4)].fault(signal.SIGKILL), processes=4)
            codes = [child.wait() for child in children]
            assert {*codes} <= {0, 75, -9}, children[0].output.read_text()
            assert Child("training", place).wait() == 0
            assert difference(files_in(place), files_in(undisturbed("training"))) == [], f"seed {count.seed}, {number}"
        count.count(lost=0)


@LONG
def test_two_processes_on_one_study_write_the_files_of_one(tmp_path: Path) -> None:
    with faults("together: one study") as count:
        for number in range(5):
            place = tmp_path / str(number)
            children = [Child("study", place)]
            time.sleep(count.random.uniform(0, 2))
            children.append(Child("study", place))
            codes = [child.wait() for child in children]
            wait_for_workers(place)
            output = children[0].output.read_text()
            assert {*codes} <= {0, 1} and "Traceback" not in output, output
            if 1 in codes:
                assert "the study constant-lr at scale demo is in use by process" in output, output
            assert 0 in codes, output
            assert difference(files_in(place), files_in(undisturbed("study"))) == [], f"seed {count.seed}, {number}"
            count.count(processes=2, reported=codes.count(1))
        count.count(lost=0)


@LONG
def test_reports_during_a_study_succeed_and_do_not_disturb_it(tmp_path: Path) -> None:
    with faults("together: reports while a study trains") as count:
        for number in range(3):
            place = tmp_path / str(number)
            training = Child("study", place)
            while not place.exists() and training.process.exitcode is None:
                time.sleep(0.02)
            while training.process.exitcode is None:
                report = Child("report", place)
                assert report.wait() == 0, report.output.read_text()
                count.count(reports=1)
            assert training.wait() == 0, training.output.read_text()
            assert Child("report", place).wait() == 0
            found, wanted = without_times(files_in(place)), without_times(files_in(undisturbed("report")))
            assert difference(found, wanted) == [], f"seed {count.seed}, {number}"
        count.count(lost=0)


def without_times(files: dict[str, bytes]) -> dict[str, bytes]:
    """Remove the start times of runs: a range, or one time if all started in the same second."""
    time = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    page = re.sub(time + rb"( to " + time + rb")?", b"", files["report/index.html"])
    return {**files, "report/index.html": page}


def test_two_trackers_in_one_folder_never_return_the_weights_of_each_other(tmp_path: Path) -> None:
    models = [nn.Linear(2, 1), nn.Linear(2, 1)]
    banks = [EMABank(model, [0.9], every=1) for model in models]
    first, second = (BestTracker(bank, {"loss": "min"}, folder=tmp_path) for bank in banks)
    first.observe(1, {0.9: {"loss": 0.5}})
    weights = first.weights("loss")
    second.observe(1, {0.9: {"loss": 0.5}})
    assert torch.equal(second.weights("loss")["weight"], models[1].weight)
    with pytest.raises(ValueError, match=r"epoch-1.pt is intact but was overwritten by another writer"):
        first.weights("loss")
    assert not torch.equal(weights["weight"], second.weights("loss")["weight"])
    second.observe(2, {0.9: {"loss": 0.4}})
    with pytest.raises(FileNotFoundError, match=r"'ema-0.9' at epoch 1 is gone from the tracker's folder"):
        first.weights("loss")
