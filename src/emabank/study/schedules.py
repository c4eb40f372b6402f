"""Learning rates by optimizer step: a warm-up, then a cosine or steps, constant from some epoch on if asked.

Pure maths in Python floats; imports nothing of ours, not even torch.
"""

import math
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Literal, TypeGuard, get_args

Kind = Literal["cosine", "step"]


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every step of one run; steps are counted from 0, epochs may be fractions.

    The rate rises linearly to `peak` over `warmup_epochs`, and is never 0 there. Then a "cosine" falls to 0 at the end
    of the run, and "step" divides by `factor` at each of the `milestones`. From the first step of epoch
    `constant_from` on, the rate stays what it is at that step; before, it is bit for bit what it would be without.

    >>> cosine = Schedule("cosine", peak=0.8, epochs=200, steps_per_epoch=391, warmup_epochs=5)
    >>> [round(cosine.rate(391 * epoch), 4) for epoch in (0, 5, 100, 150, 200)]
    [0.0004, 0.8, 0.4161, 0.1229, 0.0]
    >>> step = Schedule("step", peak=0.1, epochs=200, steps_per_epoch=391, warmup_epochs=0)
    >>> [round(step.rate(391 * epoch), 6) for epoch in (0, 60, 120, 160)]
    [0.1, 0.02, 0.004, 0.0008]
    """

    kind: Kind
    _: KW_ONLY
    peak: float
    epochs: int
    steps_per_epoch: int
    warmup_epochs: float
    milestones: tuple[float, ...] = (60, 120, 160)
    factor: float = 5.0
    constant_from: float | None = None

    def __post_init__(self) -> None:
        _check(self)

    @property
    def steps(self) -> int:
        """How many steps the run has.

        >>> Schedule("cosine", peak=0.1, epochs=3, steps_per_epoch=7, warmup_epochs=0).steps
        21
        """
        return self.epochs * self.steps_per_epoch

    def first_step(self, epoch: float) -> int:
        """The first step at which so many epochs have passed.

        >>> schedule = Schedule("cosine", peak=0.1, epochs=3, steps_per_epoch=100, warmup_epochs=0)
        >>> [schedule.first_step(epoch) for epoch in (0, 0.07, 1, 1.255)]
        [0, 7, 100, 126]
        """
        # 0.07 epochs of 100 steps are 7.000000000000001 steps in floats, and still 7.
        return math.ceil(epoch * self.steps_per_epoch - 1e-6)

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 0 to `steps`; the last step of the run is `steps - 1`.

        >>> held = Schedule("cosine", peak=1, epochs=4, steps_per_epoch=1, warmup_epochs=0, constant_from=2)
        >>> [round(held.rate(step), 3) for step in range(5)]
        [1.0, 0.854, 0.5, 0.5, 0.5]
        """
        if not 0 <= step <= self.steps:
            raise ValueError(f"step is {step}; the run has {self.steps} steps, so give 0 to {self.steps}")
        if self.constant_from is not None:
            step = min(step, self.first_step(self.constant_from))
        warmup = self.warmup_epochs * self.steps_per_epoch
        if step < warmup:
            return self.peak * min(1.0, (step + 1) / warmup)
        if self.kind == "step":
            return self.peak / self.factor ** sum(step >= self.first_step(epoch) for epoch in self.milestones)
        return self.peak * (1 + math.cos(math.pi * (step - warmup) / (self.steps - warmup))) / 2


def _check(schedule: Schedule) -> None:
    if schedule.kind not in get_args(Kind):
        raise ValueError(f"kind is {schedule.kind!r}; give 'cosine' or 'step'")
    _check_count("epochs", schedule.epochs)
    _check_count("steps_per_epoch", schedule.steps_per_epoch)
    peak, factor, warmup, epochs = schedule.peak, schedule.factor, schedule.warmup_epochs, schedule.epochs
    if not (_is_number(peak) and peak > 0):
        raise ValueError(f"peak is {peak!r}; give the highest learning rate, a number above 0, such as 0.1")
    if not (_is_number(factor) and factor > 1):
        raise ValueError(f"factor is {factor!r}; the rate is divided by it, so give a number above 1, such as 5")
    if not (_is_number(warmup) and 0 <= warmup < epochs):
        raise ValueError(f"warmup_epochs is {warmup!r}; give a number from 0 to below the {epochs} epochs of the run")
    constant = schedule.constant_from
    if constant is not None and not (_is_number(constant) and warmup <= constant < epochs):
        raise ValueError(
            f"constant_from is {constant!r}; give None, or an epoch from the end of the warm-up, {warmup:g}, "
            f"to below the {epochs} epochs of the run"
        )
    _check_milestones(schedule)


def _check_milestones(schedule: Schedule) -> None:
    milestones = schedule.milestones
    rising = all(_is_number(epoch) and epoch > 0 for epoch in milestones) and sorted(set(milestones)) == list(
        milestones
    )
    if not rising:
        raise ValueError(f"milestones are {milestones}; give epochs above 0 in rising order, such as (60, 120, 160)")
    inside = all(schedule.warmup_epochs <= epoch < schedule.epochs for epoch in milestones)
    if schedule.kind == "step" and not inside:
        raise ValueError(
            f"milestones are {milestones}; in a run of {schedule.epochs} epochs with {schedule.warmup_epochs:g} of "
            "warm-up they must lie between the two, so scale them with the run"
        )


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {value!r}; give a whole number, 1 or more")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
