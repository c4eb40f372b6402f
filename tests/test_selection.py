"""selection.py: the metric history, the best epochs, and their weights in memory and on disk."""

import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import emabank.selection
from emabank import EMA, Best, BestTracker, EMABank, recalibrate_batchnorm
from tests.support.models import BANK, BOTH, NAMES, Run, numbers
from tests.support.oracle import assert_equal, states_equal


@pytest.fixture(params=["memory", "disk"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Arguments that make a BestTracker keep its snapshots in memory or on disk."""
    return {} if request.param == "memory" else {"folder": tmp_path / "snapshots"}


def test_averages_that_warmup_keeps_equal_are_warned_about_once() -> None:
    model = nn.Linear(2, 1)
    bank = EMABank(model, {"fast": EMA(0.9), "slow": EMA(0.99), "slower": EMA(0.999)})
    tracker = BestTracker(bank, {"loss": "min"})
    for _ in range(20):
        nn.init.normal_(model.weight)
        bank.update()
    assert states_equal(bank.weights("slow"), bank.weights("slower"))
    losses = {name: {"loss": 0.5} for name in ("live", *bank.names)}
    tracker.observe(1, {"live": losses["live"], "slow": losses["slow"]})  # one of the two: no warning
    with pytest.warns(UserWarning, match="^slow, slower are equal so far"):
        tracker.observe(2, losses)
    tracker.observe(3, losses)
    assert "slow, slower are equal so far" in str(tracker.advice())
    for _ in range(2000):
        bank.update()
    assert "equal so far" not in str(tracker.advice())


@pytest.mark.parametrize(
    "arguments",
    [
        {"criteria": {}},
        {"criteria": {"accuracy": "maximum"}},
        {"criteria": "acc"},
        {"criteria": ["accuracy"]},
        {"criteria": None},
        {"snapshots": "all"},
        {"folder": "x", "snapshots": None},
    ],
)
def test_wrong_arguments_are_named(arguments: Any) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(arguments))} must"):
        BestTracker(BANK, **arguments)
    tracker = BestTracker(BANK)
    with pytest.raises(ValueError, match="bank must be an EMABank; got a Linear"):
        BestTracker(torch.nn.Linear(2, 1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="^patience must .* got 0"):
        tracker.should_stop(0)
    with pytest.raises(ValueError, match="batchnorm must be .* got 'fresh'"):
        tracker.observe(1, {"live": numbers(1.0)}, batchnorm="fresh")  # pyright: ignore[reportArgumentType]
    for method in (tracker.best, tracker.weights, lambda name: tracker.should_stop(1, criterion=name)):
        with pytest.raises(KeyError, match="there are accuracy, loss"):
            method("f1")
    with pytest.raises(KeyError, match=r"ema-0\.5, ema-0\.9"):
        tracker.best("loss", 0.7)


# Snapshots -----------------------------------------------------------------------------------------------------------


def test_trap43_weights_and_states_are_copied_in_and_out(storage: dict[str, Any]) -> None:
    run = Run(**storage)
    run.epoch(1, {"live": numbers(0.9), 0.9: numbers(0.5)})
    state, other = run.tracker.state_dict(), BestTracker(run.bank, BOTH)
    other.load_state_dict(state)
    run.epoch(2, {"live": numbers(0.1), 0.9: numbers(0.5)})
    for tensors in (run.tracker.weights("accuracy"), state["weights"][0]["weights"]):
        for tensor in tensors.values():
            tensor.zero_()
    state["history"][0][3] = 9.0
    run.tracker.history.clear()
    for tracker in (run.tracker, other):
        assert_equal(tracker.weights("accuracy"), run.weights["live", 1])
        assert tracker.best("accuracy").value == 0.9


def test_weights_are_copied_only_when_a_value_improves(monkeypatch: pytest.MonkeyPatch) -> None:
    run, taken = Run(), []
    weights = run.bank.weights
    monkeypatch.setattr(run.bank, "weights", lambda name, **options: (taken.append(name), weights(name, **options))[1])
    run.tracker.observe(1, {"live": numbers(0.5), 0.5: numbers(0.6), 0.9: numbers(0.7, 0.5)})
    run.tracker.observe(2, {"live": numbers(0.5), 0.5: numbers(0.7), 0.9: numbers(0.7)})
    run.tracker.observe(3, {"live": numbers(0.9)}, complete=False)
    run.tracker.observe(4, {"live": numbers(math.nan, math.nan)})
    assert taken == ["ema-0.9"]


def test_missing_snapshots_are_explained() -> None:
    run = Run()
    run.epoch(1, {"live": numbers(0.5, 0.5), 0.9: numbers(0.9, 0.6), 0.5: numbers(0.8, 0.8)})
    assert_equal(run.tracker.weights("accuracy", 0.9), run.weights["ema-0.9", 1])
    assert_equal(run.tracker.weights("accuracy", run.bank.names), run.weights["ema-0.9", 1])
    with pytest.raises(RuntimeError, match=r"The weights of 'ema-0\.5' at epoch 1 were not kept.*snapshots='each'"):
        run.tracker.weights("accuracy", 0.5)
    nothing = BestTracker(BANK, snapshots=None)
    nothing.observe(1, {"live": numbers(0.5)})
    with pytest.raises(RuntimeError, match="snapshots=None"):
        nothing.weights("accuracy")


def test_a_snapshot_has_the_statistics_it_was_evaluated_with(storage: dict[str, Any]) -> None:
    run = Run(snapshots="each", **storage)
    run.bank.update()
    recalibrate_batchnorm(run.bank, [torch.randn(9, 3)], averages=[0.9])
    recomputed = run.bank.weights(0.9, batchnorm="recomputed")["1.running_mean"]
    assert recomputed.tolist() != [0.0] * 3
    run.tracker.observe(1, {"live": numbers(0.1), 0.9: numbers(0.5)}, batchnorm="recomputed")
    run.tracker.observe(1, {0.5: numbers(0.4)})
    assert_equal(run.tracker.weights("accuracy", 0.9)["1.running_mean"], recomputed)
    assert run.tracker.weights("accuracy", "live")["1.running_mean"].tolist() == [0.0] * 3
    assert run.tracker.weights("accuracy", 0.5)["1.running_mean"].tolist() == [0.0] * 3
    before = run.tracker.state_dict()
    with pytest.raises(RuntimeError, match="recomputed"):  # 0.5 has none
        run.tracker.observe(2, {0.9: numbers(0.6), 0.5: numbers(0.6)}, batchnorm="recomputed")
    assert states_equal(run.tracker.state_dict(), before)


# Resuming ------------------------------------------------------------------------------------------------------------


PLAN = [
    (0, {"live": numbers(0.9, 0.1)}, {"complete": False}),
    (0, {"live": numbers(0.5, 0.5), 0.5: numbers(0.4, 0.6)}, {}),
    (1, {"live": numbers(0.6, 0.6), 0.9: numbers(0.6, 0.4)}, {}),
    (1, {0.5: numbers(0.6, 0.4)}, {}),
    (2, {"live": numbers(math.nan, math.inf), 0.9: numbers(0.55, 0.4)}, {}),
    (3, {"live": numbers(0.6, 0.3), 0.9: numbers(0.7, 0.4), 0.5: numbers(0.7, 0.2)}, {}),
]


@pytest.mark.parametrize("mode", ["best", "each", None])
@pytest.mark.parametrize("split", range(len(PLAN) + 1))
def test_trap40_resumed_anywhere_equals_the_uninterrupted_tracker(
    tmp_path: Path, split: int, mode: Literal["best", "each"] | None
) -> None:
    uninterrupted = Run(snapshots=mode)
    for epoch, metrics, options in PLAN:
        uninterrupted.epoch(epoch, metrics, **options)
    first = Run(snapshots=mode)
    for epoch, metrics, options in PLAN[:split]:
        first.epoch(epoch, metrics, **options)
    buffer = io.BytesIO()
    torch.save([first.tracker.state_dict(), first.bank.state_dict(), first.model.state_dict()], buffer)
    buffer.seek(0)
    state, bank, model = torch.load(buffer, weights_only=True)  # trap 44
    second = Run(snapshots=mode, **({"folder": tmp_path} if mode else {}))  # from memory to disk
    second.model.load_state_dict(model)
    second.bank.load_state_dict(bank)
    second.tracker.load_state_dict(state)
    assert states_equal(second.tracker.state_dict(), first.tracker.state_dict())
    for epoch, metrics, options in PLAN[split:]:
        second.epoch(epoch, metrics, **options)
    assert states_equal(second.tracker.state_dict(), uninterrupted.tracker.state_dict())
    assert second.tracker.best("loss") == uninterrupted.tracker.best("loss")
    assert second.tracker.should_stop(1) == uninterrupted.tracker.should_stop(1)
    assert repr(second.tracker) == repr(uninterrupted.tracker)
    if mode:
        assert_equal(second.tracker.weights("loss"), uninterrupted.tracker.weights("loss"))
        assert len(list(tmp_path.iterdir())) == len(second.tracker.state_dict()["weights"])


def test_trap40_a_run_that_crashed_after_its_checkpoint_recovers_its_best_weights(tmp_path: Path) -> None:
    run = Run(folder=tmp_path)
    run.epoch(1, {0.9: numbers(0.5)})
    checkpoint = run.tracker.state_dict()
    run.epoch(2, {0.9: numbers(0.9)})  # removes the file of epoch 1; then the machine crashes
    resumed = BestTracker(run.bank, BOTH, folder=tmp_path)
    resumed.load_state_dict(checkpoint)
    assert_equal(resumed.weights("accuracy"), run.weights["ema-0.9", 1])


def test_criteria_in_another_order_are_the_same() -> None:
    run = Run()
    run.epoch(1, {0.9: numbers(0.5)})
    other = BestTracker(run.bank, {"loss": "min", "accuracy": "max"})
    other.load_state_dict(run.tracker.state_dict())
    assert other.best("loss") == run.tracker.best("loss")


# Evaluating ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batchnorm", ["averaged", "recomputed"])
def test_evaluate_observes_numbers_and_the_means_of_per_sample_values(batchnorm: Any) -> None:
    run, inputs = Run(), torch.randn(30, 3)
    run.bank.update()
    recalibrate_batchnorm(run.bank, [torch.randn(9, 3)])
    expected = {name: run.bank.module(name, batchnorm=batchnorm)(inputs) for name in run.bank.names}
    expected["live"] = run.bank.module("live", batchnorm="averaged")(inputs)  # always with its own statistics

    def fn(model: nn.Module) -> dict[str, Any]:
        outputs = model(inputs)
        return {"accuracy": outputs[:, 0] > 0, "loss": outputs.square().mean(1), "worst": outputs.max()}

    metrics = run.tracker.evaluate(1, fn, batchnorm=batchnorm)
    for name, outputs in expected.items():
        wanted = {
            "accuracy": (outputs[:, 0] > 0).float().mean(),
            "loss": outputs.square().mean(),
            "worst": outputs.max(),
        }
        assert metrics[name] == pytest.approx({metric: float(value) for metric, value in wanted.items()}, rel=1e-5)
    assert {(row.average, row.metric): row.value for row in run.tracker.history} == {
        (name, metric): value for name, values in metrics.items() for metric, value in values.items()
    }
    assert run.tracker.advice().error is not None
    assert run.tracker.advice("loss").error is not None


def test_evaluate_accepts_plain_numbers_and_refuses_invalid_results() -> None:
    run = Run()
    run.tracker.evaluate(1, lambda model: numbers(0.5), complete=False)
    assert not any(row.complete for row in run.tracker.history)
    run.tracker.evaluate(1, lambda model: numbers(0.5))
    assert run.tracker.advice().error is None
    before = run.tracker.state_dict()
    with pytest.raises(ValueError, match=r"fn must .* got 0\.5"):
        run.tracker.evaluate(2, lambda model: 0.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(RuntimeError, match="recomputed"):
        run.tracker.evaluate(2, lambda model: numbers(0.6), batchnorm="recomputed")
    assert run.model.training
    assert states_equal(run.tracker.state_dict(), before)


# Selection -----------------------------------------------------------------------------------------------------------

VALUES = st.sampled_from([0.1, 0.2, 0.3, 0.2, math.nan, math.inf, -math.inf])
CALLS = st.lists(
    st.tuples(
        st.integers(0, 1),  # increment of the epoch
        st.booleans(),
        st.permutations(NAMES).flatmap(lambda names: st.integers(1, 3).map(lambda n: names[:n])),
        st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=3, max_size=3),
    ),
    max_size=12,
)


def track(calls: Iterable[Any]) -> tuple[BestTracker, list[tuple[int, str, dict[str, float]]]]:
    """A tracker after these calls, and its complete observations in order; the test accuracy is no criterion."""
    tracker = BestTracker(BANK, BOTH, snapshots=None)
    complete: list[tuple[int, str, dict[str, float]]] = []
    epoch = 0
    for move, is_complete, names, values in calls:
        epoch += move
        fresh = [name for name in names if not any(e == epoch and n == name for e, n, _ in complete)]
        named = zip(fresh, values, strict=False)
        metrics = {name: {"loss": a, "accuracy": b, "test accuracy": c} for name, (a, b, c) in named}
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
def test_trap48_trap49_trap50_trap51_trap52_best_equals_a_brute_force_search(calls: list[Any]) -> None:
    tracker, complete = track(calls)
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
    tracker, complete = track(calls)
    epochs = [epoch for epoch, _, _ in complete]
    since = {}
    for criterion in BOTH:
        best = brute_force(complete, criterion, NAMES)
        since[criterion] = epochs[-1] - (best.epoch if best else epochs[0]) if epochs else 0
        assert tracker.should_stop(patience, criterion=criterion) == (since[criterion] >= patience)
    assert tracker.should_stop(patience) == all(value >= patience for value in since.values())


def test_trap50_accuracy_and_loss_are_kept_apart_per_average_and_over_all(storage: dict[str, Any]) -> None:
    run = Run(snapshots="each", **storage)
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


# Observations --------------------------------------------------------------------------------------------------------


def test_values_may_be_tensors_and_further_metrics_are_kept() -> None:
    tracker = BestTracker(BANK, {"accuracy": "max"})
    tracker.observe(1, {"live": {"accuracy": torch.tensor(0.5), "ece": torch.tensor([0.25])}, 0.9: {"accuracy": 1}})
    rows = [(1, "live", "accuracy", 0.5, True), (1, "live", "ece", 0.25, True), (1, "ema-0.9", "accuracy", 1.0, True)]
    assert [tuple(row) for row in tracker.history] == rows
    assert all(type(row.value) is float for row in tracker.history)


@pytest.mark.parametrize(
    ("epoch", "metrics", "error", "message"),
    [
        (5, {"live": numbers(1.0), 0.7: numbers(1.0)}, KeyError, r"ema-0\.5, ema-0\.9"),
        (5, {"live": numbers(1.0), 0.9: {"loss": 0.1}}, ValueError, r"accuracy of 'ema-0\.9' at epoch 5, but 'loss'"),
        (5, {"live": numbers(1.0), 0.9: {}}, ValueError, r"accuracy and loss of 'ema-0\.9' at epoch 5"),
        (5, {"live": numbers(1.0), 0.9: 0.5}, ValueError, r"'ema-0\.9'; got 0\.5"),
        (5, {"live": numbers(1.0), 0.9: {"accuracy": "high", "loss": 1.0}}, ValueError, r"'accuracy' .* got 'high'"),
        (5, {"live": numbers(1.0), 0.9: {"accuracy": torch.ones(2), "loss": 1.0}}, ValueError, "'accuracy' .* got"),
        (5, {0.9: numbers(1.0), "ema-0.9": numbers(1.0)}, ValueError, r"'ema-0\.9' was already observed at epoch 5"),
        (4, {"live": numbers(1.0), 0.5: numbers(1.0)}, ValueError, r"'ema-0\.5' was already observed at epoch 4"),
        (3, {"live": numbers(1.0)}, ValueError, "epoch must be at least 4"),
        (5, {}, ValueError, "at least one average"),
        (5.5, {"live": numbers(1.0)}, ValueError, r"epoch must be a whole number; got 5\.5"),
    ],
)
def test_a_wrong_observation_is_refused_and_changes_nothing(
    storage: dict[str, Any], epoch: Any, metrics: Any, error: type[Exception], message: str
) -> None:
    run = Run(**storage)
    run.epoch(4, {0.5: numbers(0.5)})
    before = run.tracker.state_dict()
    with pytest.raises(error, match=message):
        run.tracker.observe(epoch, metrics)
    assert states_equal(run.tracker.state_dict(), before)
    run.epoch(4, {"live": numbers(0.7)})  # the same epoch may continue
    assert run.tracker.best("accuracy").average == "live"


# Snapshots on disk ----------------------------------------------------------------------------------------------------


def test_each_snapshot_is_one_file_and_outdated_files_are_removed(tmp_path: Path) -> None:
    run = Run(folder=tmp_path)
    run.epoch(1, {"live": numbers(0.5, 0.5)})
    run.epoch(2, {"live": numbers(0.6, 0.6), 0.9: numbers(0.6, 0.6)})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["live-epoch-1.pt", "live-epoch-2.pt"]
    run.epoch(3, {"live": numbers(0.6, 0.6), 0.9: numbers(0.7, 0.4)})
    assert [path.name for path in tmp_path.iterdir()] == ["ema-0.9-epoch-3.pt"]


def test_any_average_name_gets_its_own_file(tmp_path: Path) -> None:
    names = ["a/b", "A/b", "../up", "slow", "Slow", "über", "x" * 300, "x" * 301]
    bank = EMABank(nn.Linear(2, 1), {name: 0.9 - 0.1 * i for i, name in enumerate(names)})
    tracker = BestTracker(bank, {"loss": "min"}, snapshots="each", folder=tmp_path / "in")
    tracker.observe(1, {name: {"loss": 1.0} for name in names})
    files = {path.name.lower() for path in (tmp_path / "in").iterdir()}
    assert len(files) == len(names)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    for name in names:
        tracker.weights("loss", name)


def test_trap41_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    run = Run(folder=tmp_path)
    run.epoch(1, {0.9: numbers(0.5)})
    path = tmp_path / "ema-0.9-epoch-1.pt"
    intact = path.read_bytes()
    path.write_bytes(intact[:-10])
    with pytest.raises(ValueError, match=r"ema-0\.9-epoch-1\.pt is damaged"):
        run.tracker.weights("accuracy")
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"The snapshot of 'ema-0\.9' at epoch 1 is gone.*ema-0\.9-epoch-1\.pt"):
        run.tracker.weights("accuracy")
    path.write_bytes(intact)
    assert_equal(run.tracker.weights("accuracy"), run.weights["ema-0.9", 1])


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(snapshots="each", folder=tmp_path)
    run.epoch(1, {"live": numbers(0.5), 0.9: numbers(0.5)})
    before, files = run.tracker.state_dict(), sorted(tmp_path.iterdir())
    written: list[Path] = []
    write_state = emabank.selection.write_state

    def second_fails(path: Path, state: Any, *, kind: str) -> None:
        if written:
            raise OSError(28, "No space left on device")
        written.append(path)
        write_state(path, state, kind=kind)

    monkeypatch.setattr(emabank.selection, "write_state", second_fails)
    with pytest.raises(OSError, match="No space left"):
        run.epoch(2, {"live": numbers(0.6), 0.9: numbers(0.6)})
    assert written
    assert sorted(tmp_path.iterdir()) == files
    assert states_equal(run.tracker.state_dict(), before)


def test_evaluate_runs_only_the_requested_averages() -> None:
    bank = EMABank(nn.Linear(2, 1), [0.9, 0.99])
    tracker, accuracies = BestTracker(bank, {"accuracy": "max"}), iter([0.6, 0.7])
    metrics = tracker.evaluate(1, lambda model: {"accuracy": next(accuracies)}, averages=["live", 0.99])
    assert list(metrics) == ["live", "ema-0.99"]
