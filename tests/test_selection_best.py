"""What a tracker has observed: its bests against a brute-force search through all of it, and what it refuses."""

import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from observing import BANK, BOTH, NAMES, Run, assert_equal, assert_same_state, numbers

from emabank import Best, BestTracker

# What is best --------------------------------------------------------------------------------------------------------

VALUES = st.sampled_from([0.1, 0.2, 0.3, 0.2, math.nan, math.inf, -math.inf])
CALLS = st.lists(
    st.tuples(
        st.integers(0, 1),  # how far the epoch moves on
        st.booleans(),
        st.permutations(NAMES).flatmap(lambda names: st.integers(1, 3).map(lambda n: names[:n])),
        st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=3, max_size=3),
    ),
    max_size=12,
)


def observed(calls: Iterable[Any], extra: str = "other") -> tuple[BestTracker, list[tuple[int, str, dict[str, float]]]]:
    """A tracker after these calls, and the complete observations that it took, in order."""
    tracker = BestTracker(BANK, BOTH, snapshots=None)
    complete: list[tuple[int, str, dict[str, float]]] = []
    epoch = 0
    for move, is_complete, names, values in calls:
        epoch += move
        fresh = [name for name in names if not any(e == epoch and n == name for e, n, _ in complete)]
        metrics = {name: {"loss": a, "accuracy": b, extra: c} for name, (a, b, c) in zip(fresh, values, strict=False)}
        if metrics:
            tracker.observe(epoch, metrics, complete=is_complete)
            complete += [(epoch, name, metrics[name]) for name in metrics if is_complete]
    return tracker, complete


def brute_force(complete: list[Any], criterion: str, names: Iterable[str]) -> Best | None:
    best = None
    for epoch, name, metrics in complete:
        value = metrics[criterion]
        if name not in names or str(value) in ("nan", "inf", "-inf"):
            continue
        if best is None or (value > best.value if criterion == "accuracy" else value < best.value):
            best = Best(criterion, name, epoch, value)
    return best


@settings(deadline=None, max_examples=200)
@given(CALLS)
def test_trap48_trap49_trap50_trap51_best_equals_a_brute_force_search(calls: list[Any]) -> None:
    tracker, complete = observed(calls)
    for criterion in BOTH:
        for chosen in (None, *NAMES, 0.9, BANK.names, ["live", 0.5]):
            names = NAMES if chosen is None else chosen if isinstance(chosen, list | tuple) else [chosen]
            expected = brute_force(complete, criterion, [BANK.resolve(name) for name in names])
            if expected is None:
                with pytest.raises(LookupError, match="has been observed that is complete and finite"):
                    tracker.best(criterion, chosen)
            else:
                assert tracker.best(criterion, chosen) == expected


@settings(deadline=None, max_examples=100)
@given(CALLS, st.integers(1, 4))
def test_should_stop_equals_a_brute_force_search(calls: list[Any], patience: int) -> None:
    tracker, complete = observed(calls)
    epochs = [epoch for epoch, _, _ in complete]
    since = {}
    for criterion in BOTH:
        best = brute_force(complete, criterion, NAMES)
        since[criterion] = epochs[-1] - (best.epoch if best else epochs[0]) if epochs else 0
        assert tracker.should_stop(patience, criterion=criterion) == (since[criterion] >= patience)
    assert tracker.should_stop(patience) == all(value >= patience for value in since.values())


@settings(deadline=None, max_examples=50)
@given(CALLS, st.lists(VALUES, min_size=3, max_size=3))
def test_trap52_no_other_metric_can_change_the_selection(calls: list[Any], others: list[float]) -> None:
    # Were a test accuracy observed along with the rest, it could be looked up but never chosen by.
    tracker, complete = observed(calls, extra="test accuracy")
    changed = [(*call[:3], [(a, b, c) for (a, b, _), c in zip(call[3], others, strict=True)]) for call in calls]
    other, _ = observed(changed, extra="test accuracy")
    for criterion in BOTH:
        if brute_force(complete, criterion, NAMES):
            assert other.best(criterion) == tracker.best(criterion)
    assert other.should_stop(2) == tracker.should_stop(2)
    with pytest.raises(KeyError, match="there are accuracy, loss"):
        tracker.best("test accuracy")


def test_trap48_ties_earliest_epoch_wins() -> None:
    tracker = BestTracker(BANK, {"accuracy": "max"})
    tracker.observe(1, {"live": {"accuracy": 0.5}, 0.9: {"accuracy": 0.8}, 0.5: {"accuracy": 0.8}})
    tracker.observe(2, {"live": {"accuracy": 0.8}, 0.5: {"accuracy": 0.8}, 0.9: {"accuracy": 0.8}})
    assert tracker.best("accuracy") == Best("accuracy", "ema-0.9", 1, 0.8)
    assert tracker.best("accuracy", [0.5, 0.9]) == Best("accuracy", "ema-0.9", 1, 0.8)
    assert tracker.best("accuracy", "live") == Best("accuracy", "live", 2, 0.8)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_trap49_a_value_that_is_not_finite_is_never_best(bad: float) -> None:
    tracker = BestTracker(BANK)
    tracker.observe(1, {"live": numbers(bad, bad)})
    with pytest.raises(LookupError, match="No accuracy has been observed"):
        tracker.best("accuracy")
    with pytest.raises(LookupError, match="No loss has been observed"):
        tracker.weights("loss")
    tracker.observe(2, {"live": numbers(0.1, 9.0)})
    tracker.observe(3, {"live": numbers(bad, bad)})
    assert tracker.best("accuracy").epoch == tracker.best("loss").epoch == 2


def test_trap50_accuracy_and_loss_are_kept_apart_per_average_and_over_all() -> None:
    run = Run(snapshots="each")
    run.epoch(1, {"live": numbers(0.6, 0.3), 0.5: numbers(0.5, 0.2), 0.9: numbers(0.1, 0.9)})
    run.epoch(2, {"live": numbers(0.7, 0.8), 0.5: numbers(0.4, 0.4), 0.9: numbers(0.9, 0.5)})
    best = run.tracker.best
    assert (best("accuracy").average, best("accuracy").epoch) == ("ema-0.9", 2)
    assert (best("loss").average, best("loss").epoch) == ("ema-0.5", 1)
    assert [best("accuracy", name).epoch for name in NAMES] == [2, 1, 2]
    assert [best("loss", name).epoch for name in NAMES] == [1, 1, 2]
    for name in NAMES:
        for criterion in BOTH:
            assert_equal(run.tracker.weights(criterion, name), run.weights[name, best(criterion, name).epoch])


def test_trap51_a_sanity_check_cannot_set_the_best(where: dict[str, Any]) -> None:
    run = Run(**where)
    run.epoch(0, {"live": numbers(1.0, 0.0), 0.9: numbers(1.0, 0.0)}, complete=False)
    with pytest.raises(LookupError, match="complete and finite"):
        run.tracker.best("accuracy")
    assert not run.tracker.should_stop(1)
    assert not where or not where["folder"].exists()
    run.epoch(0, {"live": numbers(0.3, 0.7), 0.9: numbers(0.4, 0.6)})
    run.epoch(0, {"live": numbers(0.9, 0.1)}, complete=False)  # parts of a validation may be many, and come later
    run.epoch(0, {"live": numbers(0.9, 0.1)}, complete=False)
    assert run.tracker.best("accuracy") == Best("accuracy", "ema-0.9", 0, 0.4)
    assert [row.complete for row in run.tracker.history] == [False] * 4 + [True] * 4 + [False] * 4


def test_early_stopping_counts_epochs_not_calls() -> None:
    tracker = BestTracker(BANK, BOTH, snapshots=None)
    assert not tracker.should_stop(1)
    for epoch, (accuracy, loss) in enumerate([(0.5, 0.5), (0.6, 0.6), (0.6, 0.6), (0.6, 0.6)]):
        tracker.observe(10 * epoch, {"live": numbers(accuracy, loss)})
        tracker.observe(10 * epoch, {0.9: numbers(0.1, 0.9)})
    assert tracker.should_stop(20)
    assert not tracker.should_stop(21)
    assert tracker.should_stop(30, criterion="loss")
    assert not tracker.should_stop(30, criterion="accuracy")


# What is taken in ----------------------------------------------------------------------------------------------------


def test_values_may_be_tensors_and_further_metrics_are_kept() -> None:
    tracker = BestTracker(BANK, {"accuracy": "max"})
    tracker.observe(1, {"live": {"accuracy": torch.tensor(0.5), "ece": torch.tensor([0.25])}, 0.9: {"accuracy": 1}})
    assert [tuple(row) for row in tracker.history] == [
        (1, "live", "accuracy", 0.5, True),
        (1, "live", "ece", 0.25, True),
        (1, "ema-0.9", "accuracy", 1.0, True),
    ]
    assert all(type(row.value) is float for row in tracker.history)
    tracker.history.clear()
    assert len(tracker.history) == 3


@pytest.mark.parametrize(
    ("epoch", "metrics", "error", "message"),
    [
        (5, {"live": numbers(1.0), 0.7: numbers(1.0)}, KeyError, r"ema-0\.5, ema-0\.9"),
        (5, {"live": numbers(1.0), 0.9: {"loss": 0.1}}, ValueError, r"accuracy of 'ema-0\.9' at epoch 5"),
        (5, {"live": numbers(1.0), 0.9: {}}, ValueError, r"accuracy and loss of 'ema-0\.9' at epoch 5"),
        (5, {"live": numbers(1.0), 0.9: 0.5}, ValueError, r"'ema-0\.9'; got 0\.5"),
        (5, {"live": numbers(1.0), 0.9: {"accuracy": "high", "loss": 1.0}}, ValueError, r"'accuracy' .* got 'high'"),
        (5, {"live": numbers(1.0), 0.9: {"accuracy": torch.ones(2), "loss": 1.0}}, ValueError, "'accuracy' .* got"),
        (5, {0.9: numbers(1.0), "ema-0.9": numbers(1.0)}, ValueError, r"'ema-0\.9' was already observed at epoch 5"),
        (4, {"live": numbers(1.0), 0.5: numbers(1.0)}, ValueError, r"'ema-0\.5' was already observed at epoch 4"),
        (3, {"live": numbers(1.0)}, ValueError, "epoch must be at least 4"),
        (5, {}, ValueError, "at least one average"),
        (5.5, {"live": numbers(1.0)}, ValueError, r"epoch must be an integer; got 5\.5"),
    ],
)
def test_a_wrong_observation_is_refused_and_changes_nothing(
    where: dict[str, Any], epoch: Any, metrics: Any, error: type[Exception], message: str
) -> None:
    run = Run(**where)
    run.epoch(4, {0.5: numbers(0.5)})
    before = run.tracker.state_dict()
    with pytest.raises(error, match=message):
        run.tracker.observe(epoch, metrics)
    assert_same_state(run.tracker.state_dict(), before)
    run.epoch(4, {"live": numbers(0.7)})  # the same epoch goes on
    assert run.tracker.best("accuracy").average == "live"
