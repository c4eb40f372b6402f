"""Several processes at once: on one study, on one run, on a report while it trains, on one folder of snapshots."""

import re
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from emabank import EMABank
from emabank.selection import BestTracker
from tests.torture.faults import LONG, Child, difference, faults, left, undisturbed, wait_for_workers


def test_of_two_processes_on_one_run_one_trains_and_the_other_says_who_does(tmp_path: Path) -> None:
    with faults("together: one run, short") as count:
        two = [Child("training", tmp_path / "runs") for _ in range(2)]
        codes = [child.end() for child in two]
        said = two[0].said.read_text()  # both write there
        assert sorted(codes) in ([0, 0], [0, 75]), said
        if 75 in codes:
            assert "is in use by process" in said and "; wait until it has ended, or end it" in said
        assert difference(left(tmp_path / "runs"), left(undisturbed("training"))) == []
        count.count(processes=2, lost=0)


@LONG
def test_many_processes_on_one_run_leave_one_run(tmp_path: Path) -> None:
    with faults("together: one run") as count:
        for number in range(20):
            place = tmp_path / str(number)
            some = [Child("training", place) for _ in range(4)]
            time.sleep(count.random.uniform(0, 1))
            count.count(faults=some[count.random.randrange(4)].fault(signal.SIGKILL), processes=4)
            codes = [child.end() for child in some]
            assert {*codes} <= {0, 75, -9}, some[0].said.read_text()
            assert Child("training", place).end() == 0
            assert difference(left(place), left(undisturbed("training"))) == [], f"seed {count.seed}, {number}"
        count.count(lost=0)


@LONG
def test_two_processes_on_one_study_do_its_runs_once_and_end_as_one(tmp_path: Path) -> None:
    with faults("together: one study") as count:
        for number in range(5):
            place = tmp_path / str(number)
            two = [Child("study", place)]
            time.sleep(count.random.uniform(0, 2))
            two.append(Child("study", place))
            codes = [child.end() for child in two]
            wait_for_workers(place)
            said = two[0].said.read_text()
            assert {*codes} <= {0, 1} and "Traceback" not in said, said
            if 1 in codes:
                assert "the study constant-lr at scale demo is in use by process" in said, said
            assert 0 in codes, said
            assert difference(left(place), left(undisturbed("study"))) == [], f"seed {count.seed}, {number}"
            count.count(processes=2, reported=codes.count(1))
        count.count(lost=0)


@LONG
def test_reports_while_a_study_trains_are_made_and_get_in_nobodys_way(tmp_path: Path) -> None:
    with faults("together: reports while a study trains") as count:
        for number in range(3):
            place = tmp_path / str(number)
            trained = Child("study", place)
            while not place.exists() and trained.process.exitcode is None:
                time.sleep(0.02)
            while trained.process.exitcode is None:
                made = Child("report", place)
                assert made.end() == 0, made.said.read_text()
                count.count(reports=1)
            assert trained.end() == 0, trained.said.read_text()
            assert Child("report", place).end() == 0
            found, wanted = timeless(left(place)), timeless(left(undisturbed("report")))
            assert difference(found, wanted) == [], f"seed {count.seed}, {number}"
        count.count(lost=0)


def timeless(files: dict[str, bytes]) -> dict[str, bytes]:
    """The page says when runs were started: from when to when, or one time where all were in the same second."""
    time = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    page = re.sub(time + rb"( to " + time + rb")?", b"", files["report/index.html"])
    return {**files, "report/index.html": page}


def test_two_trackers_in_one_folder_never_hand_out_each_others_weights(tmp_path: Path) -> None:
    models = [nn.Linear(2, 1), nn.Linear(2, 1)]
    banks = [EMABank(model, [0.9], every=1) for model in models]
    first, second = (BestTracker(bank, {"loss": "min"}, folder=tmp_path) for bank in banks)
    first.observe(1, {0.9: {"loss": 0.5}})
    mine = first.weights("loss")
    second.observe(1, {0.9: {"loss": 0.5}})
    assert torch.equal(second.weights("loss")["weight"], models[1].weight)
    with pytest.raises(ValueError, match=r"epoch-1.pt is intact but was overwritten by another writer"):
        first.weights("loss")
    assert not torch.equal(mine["weight"], second.weights("loss")["weight"])
    second.observe(2, {0.9: {"loss": 0.4}})
    with pytest.raises(FileNotFoundError, match=r"'ema-0.9' at epoch 1 is gone from the tracker's folder"):
        first.weights("loss")
