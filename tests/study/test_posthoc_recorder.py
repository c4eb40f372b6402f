"""What a run keeps to choose window and stopping epoch afterwards: when, and that nothing else of the run changes."""

from pathlib import Path

import pytest

from emabank.posthoc import snapshot_steps
from emabank.study.train import Interrupted, Training
from tests.study.small_runs import Drawer, config, trained, training_of
from tests.study.small_runs import one_thread as one_thread
from tests.support.oracle import states_equal


def due(snapshots: int, epochs: int, *, every: int = 1) -> list[int]:
    """The steps of a run, five an epoch, after which snapshots are due."""
    run = config(posthoc=snapshots, training={"epochs": epochs}, averages={"every": every})
    training = training_of(run)
    assert len(training.loader) == 5
    return [step for step in range(1, 5 * epochs + 1) if training.recorder.is_due(step)]


@pytest.mark.parametrize(
    ("snapshots", "epochs", "every", "steps"),
    [
        (4, 4, 1, [5, 10, 15, 20]),
        (7, 4, 1, [5, 10, 15, 20]),
        (8, 4, 1, [2, 5, 7, 10, 12, 15, 17, 20]),
        (100, 2, 1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (100, 2, 2, [2, 5, 7, 10]),  # no more than there are samples
        (2, 4, 1, [10, 20]),
        (2, 5, 1, [15, 25]),  # the last step always
        (1, 4, 1, [20]),
    ],
)
def test_snapshots_are_due_at_the_ends_of_epochs_and_evenly_between(
    snapshots: int, epochs: int, every: int, steps: list[int]
):
    assert due(snapshots, epochs, every=every) == steps


def test_nothing_else_of_a_run_changes(tmp_path: Path):
    plain = trained(config())
    training = training_of(config(posthoc=8))
    training.recorder.keep_in(tmp_path)
    training.run()
    assert snapshot_steps(tmp_path) == [0, 2, 5, 7, 10, 12, 15, 17, 20]
    assert states_equal(plain.model.state_dict(), training.model.state_dict())
    assert states_equal(plain.bank.state_dict(), training.bank.state_dict())
    assert plain.measured == training.measured
    bare = training_of(config())
    bare.recorder.keep_in(tmp_path / "posthoc")
    bare.run()
    assert bare.recorder.state_dict() is None and not (tmp_path / "posthoc").exists()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def interrupted(training: Training, drawer: Drawer, after: int) -> None:
    with pytest.raises(Interrupted):
        training.run(drawer, checkpoint_seconds=1e9, should_stop=lambda: training.steps >= after)


def test_interrupted_anywhere_the_snapshots_are_the_same(tmp_path: Path):
    run = config(posthoc=8)
    whole = training_of(run)
    whole.recorder.keep_in(tmp_path / "whole")
    whole.run()
    drawer = Drawer(tmp_path)
    first = training_of(run)
    first.recorder.keep_in(tmp_path / "parts")
    interrupted(first, drawer, 6)
    state = drawer.load_checkpoint()
    first.run()  # continues without a checkpoint, as if it were killed after the twentieth step
    assert max(snapshot_steps(tmp_path / "parts")) == 20
    second = training_of(run)
    second.load_state_dict(state)
    second.recorder.keep_in(tmp_path / "parts")
    assert snapshot_steps(tmp_path / "parts") == [0, 2, 5]
    second.run()
    assert contents(tmp_path / "whole") == contents(tmp_path / "parts")


def test_from_the_beginning_nothing_is_left_of_an_earlier_start(tmp_path: Path):
    run = config(posthoc=8)
    first = training_of(run)
    first.recorder.keep_in(tmp_path)
    first.run()
    again = training_of(run)
    again.recorder.keep_in(tmp_path)
    assert snapshot_steps(tmp_path) == [0]


def test_a_checkpoint_without_them_is_refused():
    plain = trained(config())
    with pytest.raises(ValueError, match="this checkpoint is of a run without snapshots"):
        training_of(config(posthoc=8)).load_state_dict(plain.state_dict())
    training_of(config()).load_state_dict({k: v for k, v in plain.state_dict().items() if k != "posthoc"})
