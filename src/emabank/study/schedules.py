"""Learning rates by optimizer step: a warm-up, then a cosine or steps, and optionally constant from some epoch on.

Pure maths in Python floats; the configuration has already been checked.
"""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal

Kind = Literal["cosine", "step"]


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every step of one run; steps are counted from 0, epochs may be fractions.

    The rate rises linearly to `peak` over `warmup_epochs`, and is never 0 there. Then a "cosine" falls to 0 at the end
    of the run, and "step" divides by `factor` at each of the `milestones`. From the first step after
    `constant_from` epochs on, the rate stays what it is at that step; before, it is bit for bit the same as without.

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

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def first_step(self, epoch: float) -> int:
        """The first step after this many epochs."""
        # 0.07 epochs of 100 steps are 7.000000000000001 steps in floats, and still 7.
        return math.ceil(epoch * self.steps_per_epoch - 1e-6)

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 0 to `steps`; the last step of the run is `steps - 1`."""
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
