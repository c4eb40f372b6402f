"""Learning rates against plain loops and closed forms."""

import itertools
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from emabank.study.schedules import Schedule

PAPER = {"peak": 0.8, "epochs": 200, "steps_per_epoch": 391, "warmup_epochs": 5}


def rates(schedule: Schedule) -> list[float]:
    return [schedule.rate(step) for step in range(schedule.steps)]


def plain_cosine(peak: float, steps: int, warmup: float) -> list[float]:
    """A linear warm-up, then half a turn of a circle."""
    expected, turned = [], 0.0
    for step in range(steps):
        if step < warmup:
            expected.append(min(peak, peak / warmup * (step + 1)))
            turned = (step + 1 - warmup) / (steps - warmup) * 180
        else:
            expected.append(peak * math.cos(math.radians(turned / 2)) ** 2)  # (1 + cos x) / 2 = cos²(x / 2)
            turned += 180 / (steps - warmup)
    return expected


@st.composite
def schedules(draw, kind: str = "cosine") -> Schedule:
    epochs = draw(st.integers(1, 20))
    warmup = draw(st.sampled_from([0, 0.5, 1, 2.25, 5]).filter(lambda warmup: warmup < epochs))
    inside = st.floats(warmup, epochs, exclude_max=True).filter(lambda epoch: epoch > 0)
    return Schedule(
        kind,
        peak=draw(st.floats(1e-4, 10)),
        epochs=epochs,
        steps_per_epoch=draw(st.integers(1, 12)),
        warmup_epochs=warmup,
        milestones=tuple(sorted(draw(st.sets(inside, max_size=4)))) if kind == "step" else (60, 120, 160),
        factor=draw(st.floats(1.1, 10)),
        constant_from=draw(st.none() | st.floats(warmup, epochs, exclude_max=True)),
    )


@pytest.mark.parametrize(("epochs", "per_epoch", "warmup"), [(200, 391, 5), (60, 11, 5), (3, 7, 0.5), (1, 1, 0)])
def test_warm_up_and_cosine_equal_a_plain_loop(epochs, per_epoch, warmup):
    schedule = Schedule("cosine", peak=0.8, epochs=epochs, steps_per_epoch=per_epoch, warmup_epochs=warmup)
    assert schedule.steps == epochs * per_epoch
    assert rates(schedule) == pytest.approx(plain_cosine(0.8, schedule.steps, warmup * per_epoch), abs=1e-9)


def test_step_decay_equals_a_plain_loop():
    schedule = Schedule("step", **{**PAPER, "peak": 0.1, "steps_per_epoch": 7, "warmup_epochs": 2})
    rate, expected = 0.1, []
    for epoch, batch in itertools.product(range(200), range(7)):
        if epoch in (60, 120, 160) and batch == 0:
            rate /= 5
        expected.append(0.1 * (epoch * 7 + batch + 1) / 14 if epoch < 2 else rate)
    assert rates(schedule) == pytest.approx(expected, rel=1e-12)


def test_milestones_and_factor_can_be_set():
    schedule = Schedule("step", peak=1, epochs=3, steps_per_epoch=4, warmup_epochs=0, milestones=(0.5, 1.6), factor=10)
    # 1.6 epochs are 6.4 steps, so the rate falls before the eighth step.
    assert rates(schedule) == pytest.approx([1] * 2 + [0.1] * 5 + [0.01] * 5)
    assert set(rates(Schedule("step", peak=1, epochs=3, steps_per_epoch=4, warmup_epochs=0, milestones=()))) == {1}


@example(epoch=7, parts=100, per_epoch=100)  # 0.07 * 100 > 7 in floats
@given(epoch=st.integers(0, 2000), parts=st.integers(1, 500), per_epoch=st.integers(1, 2000))
def test_the_first_step_after_a_fraction_of_an_epoch_is_exact(epoch, parts, per_epoch):
    schedule = Schedule("cosine", peak=1, epochs=1, steps_per_epoch=per_epoch, warmup_epochs=0)
    exact = -(-epoch * per_epoch // parts)
    assert schedule.first_step(epoch / parts) == exact


@given(schedule=st.sampled_from(["cosine", "step"]).flatmap(lambda kind: schedules(kind=kind)), share=st.floats(0, 1))
def test_a_constant_rate_leaves_earlier_steps_unchanged_bit_for_bit(schedule, share):
    warmup = schedule.warmup_epochs
    fork = min(warmup + share * (schedule.epochs - warmup), math.nextafter(schedule.epochs, 0))
    whole = Schedule(**{**vars(schedule), "constant_from": None})
    constant = Schedule(**{**vars(schedule), "constant_from": fork})
    first = constant.first_step(fork)
    assert [rate.hex() for rate in rates(constant)[:first]] == [rate.hex() for rate in rates(whole)[:first]]
    assert all(constant.rate(step) == whole.rate(first) for step in range(first, constant.steps + 1))


@pytest.mark.parametrize("step", [-1, 78_201])
def test_a_step_outside_the_run_is_refused(step):
    with pytest.raises(ValueError, match=f"step is {step}; the run has 78200 steps, so give 0 to 78200"):
        Schedule("cosine", **PAPER).rate(step)
