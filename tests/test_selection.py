"""BestTracker: its snapshots against the bank itself, and resumed against uninterrupted."""

import copy
import io
import math
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from observing import BANK, BOTH, Run, assert_equal, assert_same_state, numbers
from torch import Tensor, nn

from emabank import Best, BestTracker, EMABank, recalibrate_batchnorm


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
    with pytest.raises(ValueError, match="^patience must .* got 0"):
        tracker.should_stop(0)
    with pytest.raises(ValueError, match="batchnorm must be .* got 'fresh'"):
        tracker.observe(1, {"live": numbers(1.0)}, batchnorm="fresh")  # pyright: ignore[reportArgumentType]
    for ask in (tracker.best, tracker.weights, lambda name: tracker.should_stop(1, criterion=name)):
        with pytest.raises(KeyError, match="there are accuracy, loss"):
            ask("f1")
    with pytest.raises(KeyError, match=r"ema-0\.5, ema-0\.9"):
        tracker.best("loss", 0.7)


# Snapshots -----------------------------------------------------------------------------------------------------------


def test_the_snapshot_is_of_the_epoch_that_was_best(where: dict[str, Any]) -> None:
    run = Run(**where)
    for epoch, accuracy in enumerate([0.1, 0.6, 0.4, 0.6, 0.2]):
        run.epoch(epoch, {"live": numbers(0.3), 0.9: numbers(accuracy, 1 - accuracy / 2)})
    assert run.tracker.best("accuracy") == Best("accuracy", "ema-0.9", 1, 0.6)
    assert_equal(run.tracker.weights("accuracy"), run.weights["ema-0.9", 1])
    fresh = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    fresh.load_state_dict(run.tracker.weights("accuracy"))


def test_trap43_a_snapshot_is_a_copy_each_time(where: dict[str, Any]) -> None:
    run = Run(**where)
    run.epoch(1, {"live": numbers(0.9), 0.9: numbers(0.5)})
    first = run.tracker.weights("accuracy")
    for tensor in first.values():
        tensor.zero_()
    run.epoch(2, {"live": numbers(0.1), 0.9: numbers(0.5)})
    assert_equal(run.tracker.weights("accuracy"), run.weights["live", 1])
    state = run.tracker.state_dict()
    for tensor in state["weights"][0]["weights"].values():
        tensor.zero_()
    state["history"].clear()
    assert_equal(run.tracker.weights("accuracy"), run.weights["live", 1])
    assert len(run.tracker.history) == 8


def counting(run: Run, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    taken: list[str] = []
    weights = run.bank.weights

    def record(name: str | float, **options: Any) -> dict[str, Any]:
        taken.append(str(name))
        return weights(name, **options)

    monkeypatch.setattr(run.bank, "weights", record)
    return taken


@pytest.mark.parametrize(("mode", "files"), [("best", 1), ("each", 3)])
def test_criteria_that_agree_share_one_snapshot(tmp_path: Path, mode: Any, files: int) -> None:
    run = Run(snapshots=mode, folder=tmp_path)
    for epoch in (1, 2):
        run.epoch(epoch, {"live": numbers(0.1, 0.9), 0.5: numbers(0.2 * epoch, 0.8 / epoch), 0.9: numbers(0.1, 0.9)})
    assert len(list(tmp_path.iterdir())) == files
    assert len(run.tracker.state_dict()["weights"]) == files
    assert_equal(run.tracker.weights("loss"), run.weights["ema-0.5", 2])


def test_weights_are_taken_only_when_something_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    tracker = run.tracker
    taken = counting(run, monkeypatch)
    tracker.observe(1, {"live": numbers(0.5), 0.5: numbers(0.6), 0.9: numbers(0.7, 0.5)})
    assert taken == ["ema-0.9"]
    tracker.observe(2, {"live": numbers(0.5), 0.5: numbers(0.7), 0.9: numbers(0.7)})
    tracker.observe(3, {"live": numbers(0.9)}, complete=False)
    tracker.observe(4, {"live": numbers(math.nan, math.nan)})
    assert taken == ["ema-0.9"]


def test_what_was_not_kept_is_explained() -> None:
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


def test_the_snapshot_has_the_statistics_that_were_observed(where: dict[str, Any]) -> None:
    run = Run(snapshots="each", **where)
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
    with pytest.raises(RuntimeError, match="recomputed"):  # of 0.5 there are none
        run.tracker.observe(2, {0.9: numbers(0.6), 0.5: numbers(0.6)}, batchnorm="recomputed")
    assert_same_state(run.tracker.state_dict(), before)


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
    second = Run(snapshots=mode, **({"folder": tmp_path} if mode else {}))  # from memory to disk on the way
    second.model.load_state_dict(model)
    second.bank.load_state_dict(bank)
    second.tracker.load_state_dict(state)
    assert_same_state(second.tracker.state_dict(), first.tracker.state_dict())
    for epoch, metrics, options in PLAN[split:]:
        second.epoch(epoch, metrics, **options)
    assert_same_state(second.tracker.state_dict(), uninterrupted.tracker.state_dict())
    assert second.tracker.best("loss") == uninterrupted.tracker.best("loss")
    assert second.tracker.should_stop(1) == uninterrupted.tracker.should_stop(1)
    assert repr(second.tracker) == repr(uninterrupted.tracker)
    if mode:
        assert_equal(second.tracker.weights("loss"), uninterrupted.tracker.weights("loss"))
        assert len(list(tmp_path.iterdir())) == len(second.tracker.state_dict()["weights"])


def test_trap40_a_run_that_crashed_after_its_checkpoint_has_its_best(tmp_path: Path) -> None:
    run = Run(folder=tmp_path)
    run.epoch(1, {0.9: numbers(0.5)})
    checkpoint = run.tracker.state_dict()
    run.epoch(2, {0.9: numbers(0.9)})  # the file of epoch 1 is gone now, and here the machine stops
    resumed = BestTracker(run.bank, BOTH, folder=tmp_path)
    resumed.load_state_dict(checkpoint)
    assert_equal(resumed.weights("accuracy"), run.weights["ema-0.9", 1])


def test_trap43_a_loaded_state_is_not_aliased() -> None:
    run = Run()
    run.epoch(1, {0.9: numbers(0.5)})
    state = run.tracker.state_dict()
    other = BestTracker(run.bank, BOTH)
    other.load_state_dict(state)
    state["weights"][0]["weights"]["0.weight"].zero_()
    state["history"][0][3] = 9.0
    assert_equal(other.weights("accuracy"), run.weights["ema-0.9", 1])
    assert other.best("accuracy").value == 0.5


def changed(state: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(state), **changes}


def test_trap41_a_state_that_does_not_fit_is_refused_unchanged(where: dict[str, Any]) -> None:
    run = Run(**where)
    run.epoch(1, {0.9: numbers(0.5)})
    good = run.tracker.state_dict()
    row = good["history"][0]
    wrong = {
        "history": {key: value for key, value in good.items() if key != "history"},
        "version .* got 2": changed(good, version=2),
        "criteria": changed(good, criteria={"accuracy": "max"}),
        "snapshots": changed(good, snapshots="each"),
        "ema-0.7, but the bank's averages are ema-0.5, ema-0.9": changed(good, history=[[1, "ema-0.7", *row[2:]]]),
        "is damaged: '1' in its history": changed(good, history=[["1", *row[1:]]]),
        "is damaged: .*Observation": changed(good, history=[row[:2]]),
        "is damaged: 'epoch'": changed(good, weights=[{"average": "ema-0.9"}]),
        "is damaged: its snapshots": changed(good, weights=[]),
        "is damaged: the epochs": changed(good, history=[*good["history"], [0, *row[1:]]]),
    }
    for message, state in wrong.items():
        with pytest.raises(ValueError, match=message):
            run.tracker.load_state_dict(state)
        assert_same_state(run.tracker.state_dict(), good)


def test_criteria_in_another_order_are_the_same() -> None:
    run = Run()
    run.epoch(1, {0.9: numbers(0.5)})
    other = BestTracker(run.bank, {"loss": "min", "accuracy": "max"})
    other.load_state_dict(run.tracker.state_dict())
    assert other.best("loss") == run.tracker.best("loss")


def test_repr_says_what_is_best() -> None:
    tracker = BestTracker(BANK)
    assert (
        repr(tracker) == "BestTracker(best accuracy none yet, best loss none yet; epochs observed: 0, snapshots='best')"
    )
    tracker.observe(3, {0.9: numbers(0.75, 0.5)})
    assert "best accuracy 0.75 (ema-0.9, epoch 3)" in repr(tracker)
    assert "epochs observed: 1" in repr(tracker)


def test_observing_leaves_the_random_state_and_the_training_alone() -> None:
    run = Run()
    before, state = torch.get_rng_state(), copy.deepcopy(run.model.state_dict())
    run.tracker.observe(1, {"live": numbers(0.5), 0.9: numbers(0.6)})
    assert torch.equal(torch.get_rng_state(), before)
    assert_equal(run.model.state_dict(), state)


# Evaluating ----------------------------------------------------------------------------------------------------------


class Noisy(nn.Module):
    """A linear model with dropout, one part of it frozen in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop, self.frozen = nn.Linear(3, 2), nn.Dropout(0.5), nn.BatchNorm1d(2)
        self.frozen.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.frozen(self.drop(self.linear(inputs)))


def test_evaluate_equals_applying_each_average_by_hand() -> None:
    torch.manual_seed(0)
    model, inputs, labels = Noisy(), torch.randn(30, 3), torch.arange(30) % 2
    bank = EMABank(model, [0.5, 0.9], every=1)
    for _ in range(3):
        with torch.no_grad():
            model.linear.weight.add_(torch.randn(2, 3))
        bank.update()
    by_hand: dict[str, Tensor] = {"live": copy.deepcopy(model).eval()(inputs).detach()}
    by_hand |= {name: bank.module(name)(inputs).detach() for name in bank.names}
    modes = [module.training for module in model.modules()]
    drawn: list[float] = []

    def fn(shown: nn.Module) -> dict[str, Any]:
        assert shown is model and not any(module.training for module in shown.modules())
        drawn.append(float(torch.rand(1)))
        logits = shown(inputs)
        assert not logits.requires_grad
        loss = nn.functional.cross_entropy(logits, labels, reduction="none")
        return {"accuracy": logits.argmax(1) == labels, "loss": loss, "worst": loss.max()}

    tracker, before = BestTracker(bank, BOTH), torch.get_rng_state()
    metrics = tracker.evaluate(1, fn)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(set(drawn)) == 1 and len(drawn) == 3
    assert [module.training for module in model.modules()] == modes
    assert list(metrics) == ["live", "ema-0.5", "ema-0.9"]
    for name, logits in by_hand.items():
        assert metrics[name]["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).float().mean()))
        assert metrics[name]["loss"] == pytest.approx(float(nn.functional.cross_entropy(logits, labels)), rel=1e-5)
    assert {(row.average, row.metric): row.value for row in tracker.history} == {
        (name, metric): value for name, values in metrics.items() for metric, value in values.items()
    }
    assert tracker.advice().error is not None
    assert tracker.advice("loss").error is not None


def test_evaluate_with_numbers_alone_and_what_it_refuses() -> None:
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
    assert_same_state(run.tracker.state_dict(), before)


def test_evaluate_uses_recomputed_statistics_where_they_are_asked_for() -> None:
    run = Run()
    run.bank.update()
    recalibrate_batchnorm(run.bank, [torch.randn(9, 3)])
    means = run.tracker.evaluate(
        1, lambda model: numbers(0.5, float(model.get_buffer("1.running_mean").sum())), batchnorm="recomputed"
    )
    for name in run.bank.names:
        recomputed = run.bank.weights(name, batchnorm="recomputed")["1.running_mean"]
        assert means[name]["loss"] == float(recomputed.sum()) != 0.0
    assert means["live"]["loss"] == 0.0
