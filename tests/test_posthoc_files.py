"""posthoc.py: the files of snapshots: when they are written, what goes on from them, what is refused; and by whom."""

import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from on_ranks import sharded
from snapshotting import LIVE, WIDTHS, Training
from snapshotting import trained as trained
from together import FSDP, together
from torch import nn

from emabank import EMA, EMABank, PowerEMA, posthoc
from emabank.posthoc import Snapshots, snapshot_steps, synthesize

# Files ---------------------------------------------------------------------------------------------------------------


def test_snapshots_are_of_round_steps_and_of_the_first(trained: Training) -> None:
    assert snapshot_steps(trained.folder) == list(range(0, 201, 4))


def test_called_less_often_it_writes_what_is_due(tmp_path: Path) -> None:
    bank = EMABank(nn.Linear(2, 1), WIDTHS, every=1)
    snapshots = Snapshots(bank, tmp_path, every_steps=10)
    for _ in range(5):
        for _ in range(7):
            bank.update()
        snapshots.update()
    assert snapshot_steps(tmp_path) == [0, 14, 21, 35]


def test_a_file_loads_without_running_anything(trained: Training) -> None:
    content = torch.load(trained.folder / "step-000000100.pt", weights_only=True)
    assert content["kind"] == "posthoc" and content["state"]["step"] == 100


def test_resumed_from_an_older_checkpoint_later_snapshots_are_removed(tmp_path: Path, trained: Training) -> None:
    training = Training(tmp_path).go(90)
    state = training.state()
    training.go(60)
    assert max(snapshot_steps(tmp_path)) == 148
    again = Training.__new__(Training)
    again.__dict__.update({**training.__dict__})
    again.resume(state)
    assert max(snapshot_steps(tmp_path)) == 88
    again.go(110)
    assert snapshot_steps(tmp_path) == snapshot_steps(trained.folder)
    one, other = (synthesize(folder, LIVE["long"], at_step=200) for folder in (tmp_path, trained.folder))
    assert all(torch.equal(one.weights[key], other.weights[key]) for key in one.weights)


def test_a_snapshot_that_a_kill_prevented_is_made_when_the_training_goes_on(tmp_path: Path) -> None:
    training = Training(tmp_path).go(40)
    (tmp_path / "step-000000040.pt").unlink()
    training.resume(training.state())
    assert max(snapshot_steps(tmp_path)) == 40


def test_a_folder_of_another_training_is_refused(tmp_path: Path) -> None:
    Training(tmp_path).go(8)
    with pytest.raises(ValueError, match="snapshots up to step 8, but the bank is at step 0"):
        Training(tmp_path)
    bank = EMABank(nn.Linear(2, 1), WIDTHS, every=2)
    for _ in range(9):
        bank.update()
    with pytest.raises(ValueError, match="step-000000008.pt has narrow, wide of a bank with every=1"):
        Snapshots(bank, tmp_path, every_steps=4)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    Training(tmp_path).go(20)
    path = tmp_path / "step-000000012.pt"
    content = bytearray(path.read_bytes())
    averages = torch.load(path, weights_only=True)["state"]["averages"]
    content[content.index(averages["wide"]["tensors"]["0.weight"].numpy().tobytes())] ^= 1
    for damaged in (content, content[:-100]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="step-000000012.pt is damaged"):
            synthesize(tmp_path, EMA(0.9), at_step=20)
    assert synthesize(tmp_path, EMA(0.9), at_step=8).step == 8


def test_a_snapshot_of_another_training_is_named(tmp_path: Path) -> None:
    for name in ("one", "other"):
        Training(tmp_path / name).go(20)
    shutil.copy(tmp_path / "other/step-000000012.pt", tmp_path / "one")
    with pytest.raises(ValueError, match="step-000000012.pt is of another run"):
        synthesize(tmp_path / "one", EMA(0.9))
    assert synthesize(tmp_path / "one", EMA(0.9), at_step=8).step == 8


def test_a_training_that_goes_on_keeps_its_id_and_a_new_one_gets_its_own(tmp_path: Path) -> None:
    def runs() -> list[str]:
        return [torch.load(path, weights_only=True)["state"]["run"] for path in sorted(tmp_path.glob("*.pt"))]

    training = Training(tmp_path).go(8)
    training.resume(training.state()).go(8)
    first = runs()
    assert len(first) == 5 and len(set(first)) == 1
    for path in list(tmp_path.glob("*.pt"))[1:]:
        path.unlink()
    for path in tmp_path.glob("*.pt"):
        path.rename(tmp_path / "step-000000000.pt")
    Training(tmp_path).go(4)
    assert len(set(runs())) == 1 and runs()[0] != first[0]


def test_a_training_with_an_id_refuses_the_folder_of_another(tmp_path: Path) -> None:
    training = Training(tmp_path, run="first").go(8)
    state = training.state()
    training.resume(state).go(8)
    training.options["run"] = "second"
    with pytest.raises(ValueError, match="^run must be 'first', .* got 'second'"):
        training.resume(state)


def test_a_file_from_elsewhere_is_named(tmp_path: Path) -> None:
    Training(tmp_path / "one", run="same").go(20)
    (tmp_path / "one/step-000000012.pt").rename(tmp_path / "one/step-000000013.pt")
    with pytest.raises(ValueError, match="step-000000013.pt is the snapshot of step 12"):
        synthesize(tmp_path / "one", EMA(0.9))
    bank = EMABank(nn.Linear(2, 1), WIDTHS, every=1)
    snapshots = Snapshots(bank, tmp_path / "two", every_steps=1, run="same")
    for _ in range(13):
        bank.update()
        snapshots.update()
    shutil.copy(tmp_path / "two/step-000000013.pt", tmp_path / "one")
    with pytest.raises(ValueError, match="step-000000013.pt has other tensors"):
        synthesize(tmp_path / "one", EMA(0.9))
    other = EMABank(nn.Linear(2, 1), [PowerEMA(0.1), PowerEMA(0.2)], every=1)
    Snapshots(other, tmp_path / "three", every_steps=1)
    shutil.copy(tmp_path / "three/step-000000000.pt", tmp_path / "two")
    with pytest.raises(ValueError, match="step-000000000.pt is of a bank with other averages"):
        synthesize(tmp_path / "two", EMA(0.9))


def test_one_snapshot_is_in_memory_beside_the_last(trained: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    read, alive, most = posthoc.read_state, [], []

    def watched(path: Path, *, kind: str) -> dict[str, Any]:
        most.append(sum(reference() is not None for reference in alive))
        state = read(path, kind=kind)
        alive.append(weakref.ref(state["averages"]["wide"]["tensors"]["0.weight"]))
        return state

    monkeypatch.setattr(posthoc, "read_state", watched)
    synthesize(trained.folder, LIVE["long"], at_step=200)
    assert len(most) == 51 and max(most) <= 2


# Several processes ---------------------------------------------------------------------------------------------------


@FSDP
def test_snapshots_of_a_sharded_model_are_whole_and_written_once(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    (tmp_path / "store").mkdir()
    written = together(sharded.snapshots, folder, folder=tmp_path / "store")
    assert written[1] == []  # only the first process has written
    alone = sharded.snapshots_alone(tmp_path / "alone")
    for at_step in (4, 6):
        one, other = (synthesize(path, EMA(0.8), at_step=at_step) for path in (folder, alone))
        torch.testing.assert_close(one.weights, other.weights, rtol=1e-5, atol=1e-6)
