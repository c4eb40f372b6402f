"""What an average is: each rule turns counts into a decay, the weight of the past in the next sample.

Every average here is `average ← decay * average + (1 - decay) * live`; the rules differ in the decay only. Pure maths
in Python floats (so 1 - decay is never rounded to a tensor's dtype); imports nothing of ours, not even torch.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from functools import cache
from numbers import Real
from typing import Any, Literal, Protocol, TypeGuard, runtime_checkable

# Conversions ---------------------------------------------------------------------------------------------------------


def per_step(decay: float, every: int) -> float:
    """The decay of one step that makes `decay` in `every` steps: α^(1/T) (the paper's table of equivalent decays).

    >>> round(per_step(0.998, 16), 6)
    0.999875
    """
    return decay ** (1.0 / every)


def per_update(decay: float, every: int) -> float:
    """The decay of one update, taken every `every` steps, that has the horizon of `decay` at each step: α^T.

    >>> round(per_update(0.999875, 16), 6)
    0.998002
    """
    return decay**every


def half_life(decay: float) -> float:
    """After how many applications of `decay` half of the past is left: log ½ / log α.

    >>> round(half_life(0.999), 1)
    692.8
    """
    if decay <= 0.0:
        return 0.0
    return math.inf if decay >= 1.0 else math.log(0.5) / math.log(decay)


def from_half_life(steps: float) -> float:
    """The decay of one step with a half-life of `steps`: ½^(1/h).

    >>> round(from_half_life(692.8), 6)
    0.999
    """
    return 0.5 ** (1.0 / steps)


def window(decay: float) -> float:
    """How many samples a decay remembers: its time constant 1 / (1 - α), the sum of α^k over k = 0, 1, 2, ...

    >>> round(window(0.998), 6)
    500.0
    """
    return math.inf if decay >= 1.0 else 1.0 / (1.0 - decay)


def from_window(samples: float) -> float:
    """The decay that remembers `samples` samples: 1 - 1/w.

    >>> round(from_window(500), 6)
    0.998
    """
    return 1.0 - 1.0 / samples


def warmup_decay(t: int) -> float:
    """The cap on the decay at count t of the warm-up: (t + 1) / (t + 10), as in the paper (after TensorFlow's EMA).

    >>> [round(warmup_decay(t), 4) for t in (0, 1, 2)]
    [0.1, 0.1818, 0.25]
    """
    return (t + 1) / (t + 10)


def power_warmup_decay(t: int) -> float:
    """The cap on the decay at count t of the warm-up by a power: 1 - (1 + t)^(-2/3), as in timm and diffusers.

    >>> [round(power_warmup_decay(t), 4) for t in (0, 1, 7)]
    [0.0, 0.37, 0.75]
    """
    return 1.0 - (1.0 + t) ** (-2.0 / 3.0)


def warmup_end(decay: float) -> float:
    """The first count t at which the warm-up no longer holds `decay` down: ⌈(10α - 1) / (1 - α)⌉, at least 0.

    >>> warmup_end(0.998)
    4490
    """
    if decay >= 1.0:
        return math.inf
    # By bisection, not as the quotient: that is rounded, and near 1 the definition is the same over many counts.
    below, end = -1, 0
    while warmup_decay(end) < decay:
        below, end = end, 2 * end + 1
    while end - below > 1:
        middle = (below + end) // 2
        below, end = (middle, end) if warmup_decay(middle) < decay else (below, middle)
    return end


@cache
def power_gamma(sigma_rel: float) -> float:
    """The exponent γ of a power-function average of relative width σ: σ² = (γ + 1) / ((γ + 2)² (γ + 3)).

    Karras et al. 2023 (EDM2), "Analyzing and improving the training dynamics of diffusion models", section 3.1. The
    width falls as γ grows, from 12^-½ at γ = 0, so bisection finds the one solution.

    >>> round(power_gamma(0.1), 2)
    6.94
    """
    low, high = 0.0, 1.0
    while power_sigma_rel(high) > sigma_rel:
        high *= 2.0
    while True:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            return middle
        low, high = (middle, high) if power_sigma_rel(middle) > sigma_rel else (low, middle)


def power_sigma_rel(gamma: float) -> float:
    """The relative width of the power-function average with exponent γ, the inverse of `power_gamma`.

    >>> round(power_sigma_rel(6.94), 3)
    0.1
    """
    return math.sqrt((gamma + 1.0) / (gamma + 3.0)) / (gamma + 2.0)


# Rules ---------------------------------------------------------------------------------------------------------------


@runtime_checkable
class Rule(Protocol):
    """What the bank asks of a rule. Counts are those of one average: they begin at its start, or at its reset."""

    @property
    def start(self) -> int:
        """The optimizer step after which the average begins."""
        ...

    @property
    def name(self) -> str:
        """How the average is called where the user gives no name."""
        ...

    def decay_at(self, *, steps: int, elapsed: int, samples: int, every: int) -> float:
        """The weight of the past when a sample is taken now: `steps` steps after the average began, `elapsed` after its
        last sample, after `samples` others, in a bank that samples `every` so many steps.
        """
        ...

    def describe(self, every: int) -> str:
        """One line for the bank's repr."""
        ...


@dataclass(frozen=True)
class EMA:
    """An exponential moving average: average ← α·average + (1 - α)·live (the paper's equation 1).

    Give exactly one of: `decay`, the α of one update, as the paper has it; `per_step`, the α of one optimizer step;
    `half_life`, in optimizer steps. With the last two the horizon does not depend on how often the bank samples.

    `warmup` caps the decay at (t + 1) / (t + 10); t counts optimizer steps ("steps"), or updates ("updates"; with a
    bank that samples every 16 steps this lasts 16 times longer), or there is none (None). "power" caps it at
    1 - (1 + t)^(-2/3), with t in optimizer steps, as timm and diffusers do. A decay of 1 never moves and has no
    warm-up. The average begins after optimizer step `start`.

    >>> EMA(0.998).name, EMA(half_life=693).name
    ('ema-0.998', 'ema-half-life-693')
    >>> EMA(0.998, warmup=None).decay_at(steps=16, elapsed=16, samples=0, every=16)
    0.998
    """

    decay: float | None = None
    """The weight of the past in one update."""
    per_step: float | None = None
    """The same for one optimizer step."""
    half_life: float | None = None
    """Optimizer steps after which a sample weighs half as much."""
    warmup: Literal["steps", "updates", "power"] | None = "steps"
    """What the decay is capped by at the beginning, and what is counted."""
    start: int = 0
    """The optimizer step after which the average begins."""

    def __init__(
        self,
        decay: float | None = None,
        *,
        per_step: float | None = None,
        half_life: float | None = None,
        warmup: Literal["steps", "updates", "power"] | None = "steps",
        start: int = 0,
    ) -> None:
        given = {"decay": decay, "per_step": per_step, "half_life": half_life}
        chosen = {key: value for key, value in given.items() if value is not None}
        if len(chosen) != 1:
            said = ", ".join(f"{key}={value!r}" for key, value in chosen.items()) or "none of them"
            raise ValueError(f"EMA takes exactly one of decay, per_step and half_life; given: {said}.")
        for key in ("decay", "per_step"):
            if key in chosen and not (_is_number(chosen[key]) and 0.0 <= chosen[key] <= 1.0):
                raise ValueError(
                    f"EMA({key}={chosen[key]!r}): a decay is the weight of the past, a number from 0 to 1; "
                    "0.998 per update is usual with every=16."
                )
        if "half_life" in chosen and not (_is_number(half_life) and 0.0 < half_life < math.inf):
            raise ValueError(f"EMA(half_life={half_life!r}): a half-life is a positive number of optimizer steps.")
        if warmup not in ("steps", "updates", "power", None):
            raise ValueError(f'EMA(warmup={warmup!r}): allowed are "steps", "updates", "power" and None.')
        for key, value in given.items():
            object.__setattr__(self, key, None if value is None else float(value))
        object.__setattr__(self, "warmup", warmup)
        object.__setattr__(self, "start", _checked_start("EMA", start))

    @property
    def name(self) -> str:
        """How the average is called where the user gives no name."""
        if self.decay is not None:
            return f"ema-{_short(self.decay)}"
        if self.per_step is not None:
            return f"ema-per-step-{_short(self.per_step)}"
        return f"ema-half-life-{_short(self.half_life or 0.0)}"

    def per_update(self, every: int) -> float:
        """The decay of one update in a bank that samples every so many steps.

        >>> round(EMA(per_step=0.999875).per_update(16), 6)
        0.998002
        """
        if self.decay is not None:
            return self.decay
        return per_update(self.per_step if self.per_step is not None else from_half_life(self.half_life or 1.0), every)

    def decay_at(self, *, steps: int, elapsed: int, samples: int, every: int) -> float:
        """The weight of the past when a sample is taken now; see `Rule.decay_at`."""
        decay = self.decay if self.decay is not None else self.per_update(every)
        if self.warmup is not None and decay < 1.0:
            counted = samples if self.warmup == "updates" else steps - 1
            decay = min(decay, power_warmup_decay(steps) if self.warmup == "power" else warmup_decay(counted))
        # After a flush or a reset less than a period has passed, and the past decays by as much less.
        return decay if elapsed == every else decay ** (elapsed / every)

    def describe(self, every: int) -> str:
        """One line for the bank's repr."""
        update = self.per_update(every)
        step = per_step(update, every)
        text = f"decay {update:.6g} per update, {step:.8g} per step, half-life {half_life(step):.4g} steps"
        if self.warmup is not None and update < 1.0:
            by_power = self.warmup == "power"
            end = math.ceil((1.0 - update) ** -1.5 - 1.0) if by_power else warmup_end(update)
            text += f", warm-up {end} {'steps' if by_power else self.warmup}"
        return text + (f", after step {self.start}" if self.start else "")


@dataclass(frozen=True)
class Uniform:
    """The plain mean of the samples at steps after `start`: SWA (Izmailov et al. 2018), tail averaging.

    The first sample has weight 1, so the initial weights are not in it.

    >>> [Uniform().decay_at(steps=16 * n + 16, elapsed=16, samples=n, every=16) for n in (0, 1, 3)]
    [0.0, 0.5, 0.75]
    """

    start: int = 0
    """The optimizer step after which samples count."""

    def __post_init__(self) -> None:
        _checked_start("Uniform", self.start)

    @property
    def name(self) -> str:
        """How the average is called where the user gives no name."""
        return f"uniform-{self.start}" if self.start else "uniform"

    def decay_at(self, *, steps: int, elapsed: int, samples: int, every: int) -> float:
        """The weight of the past when a sample is taken now; see `Rule.decay_at`."""
        return samples / (samples + 1)

    def describe(self, every: int) -> str:
        """One line for the bank's repr."""
        return f"the mean of the samples after step {self.start}"


@dataclass(frozen=True)
class PowerEMA:
    """A power-function average (Karras et al. 2023, EDM2): sample t weighs as t^γ, so its window grows with the run.

    `sigma_rel` is the width of the profile as a share of the run, at most 12^-½; 0.1 gives γ = 6.94.

    >>> PowerEMA(0.1).decay_at(steps=16, elapsed=16, samples=0, every=16)
    0.0
    """

    sigma_rel: float = 0.1
    """The width of the profile, as a share of the run."""

    def __post_init__(self) -> None:
        if not (_is_number(self.sigma_rel) and 0.0 < self.sigma_rel <= 12.0**-0.5):
            raise ValueError(
                f"PowerEMA(sigma_rel={self.sigma_rel!r}): the relative width is a number above 0 and at most "
                "12**-0.5 = 0.2887; EDM2 uses 0.05 to 0.15."
            )

    @property
    def start(self) -> int:
        """The step after which the average begins: 0, because its window grows from the first step on."""
        return 0

    @property
    def name(self) -> str:
        """How the average is called where the user gives no name."""
        return f"power-{_short(self.sigma_rel)}"

    def decay_at(self, *, steps: int, elapsed: int, samples: int, every: int) -> float:
        """The weight of the past when a sample is taken now; see `Rule.decay_at`."""
        return (1.0 - elapsed / steps) ** (power_gamma(self.sigma_rel) + 1.0)

    def describe(self, every: int) -> str:
        """One line for the bank's repr."""
        gamma = power_gamma(self.sigma_rel)
        return f"power {gamma:.4g}, its mean at {(gamma + 1) / (gamma + 2):.3f} of the run"


_KINDS: dict[str, type[EMA] | type[Uniform] | type[PowerEMA]] = {"EMA": EMA, "Uniform": Uniform, "PowerEMA": PowerEMA}


def as_rule(value: object) -> EMA | Uniform | PowerEMA:
    """A rule as it is, and a number as the decay of an EMA.

    >>> as_rule(0.9).name
    'ema-0.9'
    """
    if isinstance(value, EMA | Uniform | PowerEMA):
        return value
    if isinstance(value, Real) and not isinstance(value, bool):
        return EMA(float(value))
    raise ValueError(f"{value!r} is not an average: give a decay from 0 to 1, or an EMA, Uniform or PowerEMA.")


def rule_to_dict(rule: EMA | Uniform | PowerEMA) -> dict[str, Any]:
    """A rule as plain values, for a state dict.

    >>> rule_to_dict(Uniform(start=100))
    {'rule': 'Uniform', 'start': 100}
    """
    return {"rule": type(rule).__name__, **asdict(rule)}


def rule_from_dict(state: Mapping[str, Any]) -> EMA | Uniform | PowerEMA:
    """The rule that `rule_to_dict` wrote.

    >>> rule_from_dict({"rule": "Uniform", "start": 100})
    Uniform(start=100)
    """
    if not isinstance(state, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"A saved rule must be a mapping; got a {type(state).__name__}.")
    fields = dict(state)
    kind = fields.pop("rule", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"{kind!r} is not a rule of this version; known are {', '.join(_KINDS)}.")
    try:
        return _KINDS[kind](**fields)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"The fields {list(fields)} do not make a rule {kind}: {error}.") from None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _checked_start(rule: str, start: object) -> int:
    if not isinstance(start, int) or isinstance(start, bool) or start < 0:
        raise ValueError(f"{rule}(start={start!r}): start is an optimizer step, a whole number from 0 on.")
    return start


def _short(value: float) -> str:
    """0.998 as "0.998", 693.0 as "693", 700.0000000000001 as "700": to a millionth of it, and of what is left to 1."""
    close = 1e-6 * (min(value, 1.0 - value) if value <= 1.0 else value)
    return next(text for digits in range(1, 18) if abs(float(text := _plain(value, digits)) - value) <= close)


def _plain(value: float, digits: int) -> str:
    return f"{Decimal(f'{value:.{digits}g}').normalize():f}"
