"""The kinds of average. Each rule turns counts into a decay: the weight of the past in the next sample.

Every average here is `average ← decay * average + (1 - decay) * live`; the rules differ in the decay only. Pure maths
in Python floats (so 1 - decay is never rounded to a tensor's dtype); imports nothing of ours, not even torch.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from decimal import Decimal
from functools import cache
from itertools import pairwise
from numbers import Integral, Real
from random import Random
from typing import Any, Literal, TypeGuard, TypeVar

# Conversions ---------------------------------------------------------------------------------------------------------


def per_step(decay: float, every: int) -> float:
    """The decay per step that amounts to `decay` over `every` steps: α^(1/T) (the paper's table of equivalent decays).

    >>> round(per_step(0.998, 16), 6)
    0.999875
    """
    return decay ** (1.0 / every)


def per_update(decay: float, every: int) -> float:
    """The decay per update, one every `every` steps, with the same horizon as `decay` per step: α^T.

    >>> round(per_update(0.999875, 16), 6)
    0.998002
    """
    return decay**every


def half_life(decay: float) -> float:
    """The number of steps after which half of the past is left: log ½ / log α.

    >>> round(half_life(0.999), 1)
    692.8
    """
    if decay <= 0.0:
        return 0.0
    return math.inf if decay >= 1.0 else math.log(0.5) / math.log(decay)


def from_half_life(steps: float) -> float:
    """The decay per step with a half-life of `steps`: ½^(1/h).

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
    """The first count t at which the warm-up no longer caps `decay`: ⌈(10α - 1) / (1 - α)⌉, at least 0.

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

LIVE = "live"  # in place of the name of an average: the live weights

Warmup = Literal["steps", "updates", "power"]
DecayFunction = Callable[[int], float]

PAPER_PERIOD = 16
"""The paper samples every 16 steps. Its warm-up caps the decay of one such update."""


_Self = TypeVar("_Self", bound="_Rule")


class _Rule:
    """What the bank asks of a rule, beside its default `name` and a line that describes it.

    `decay_at` returns the weight of the past when a sample is taken: `steps` optimizer steps after the average began
    (at its start, or at its reset), `elapsed` after its last sample, after `samples` others, in a bank that samples
    every `every` steps. `shortest_half_life` is the number of optimizer steps in which the average forgets half of the
    past, at its fastest in a run of so many; 0 where no number says it: a function may do anything, and `per_update`
    depends on the period.
    """

    start: int = 0
    """The optimizer step after which the average begins."""

    def resolved(self: _Self, run: int | None) -> _Self:
        """The rule for a run of this many steps: shares of the run become numbers of steps."""
        return self


@dataclass(frozen=True)
class EMA(_Rule):
    """An exponential moving average: average ← α·average + (1 - α)·live (the paper's equation 1).

    Give exactly one of:

    - `decay`: α per optimizer step. An update Δ steps after the last one uses α^Δ, so the horizon does not depend on
      how often the bank samples. A function of the step is a schedule: it gets the optimizer steps since the average
      began, 1 at its first, and returns the decay per step.
    - `per_update`: α per update, as the paper has it. The horizon grows with the bank's `every`.
    - `half_life`: in optimizer steps; or, as in "3.5%", as a share of the run (the bank then needs `steps=`).

    `warmup` caps the decay at the beginning, so that the average soon forgets the initial weights:

    - "steps": at (t + 1) / (t + 10) per 16 steps, as the paper does at its period of 16; t counts optimizer steps. It
      lasts about 0.8 half-lives.
    - "updates": at (t + 1) / (t + 10) per update; t counts updates.
    - "power": at 1 - (1 + t)^(-2/3) per step, as timm and diffusers do; t counts optimizer steps.
    - None: no cap. A decay of 1, which never moves, and a function, which is its own schedule, have none either.

    The average begins after optimizer step `start`.

    >>> EMA(0.999).name, EMA(per_update=0.998).name, EMA(half_life=692.8).name
    ('ema-0.999', 'ema-per-update-0.998', 'ema-half-life-693')
    >>> EMA(0.5, warmup=None).decay_at(steps=2, elapsed=2, samples=0, every=2)
    0.25
    """

    decay: float | DecayFunction | None = None
    """The weight of the past per optimizer step, or a function of the step that returns it."""
    _: KW_ONLY
    per_update: float | None = None
    """The weight of the past per update."""
    half_life: float | str | None = None
    """Optimizer steps after which a sample weighs half as much, or a share of the run such as "3.5%"."""
    warmup: Warmup | None = "steps"
    """What caps the decay at the beginning."""
    start: int = 0
    """The optimizer step after which the average begins."""

    def __post_init__(self) -> None:
        values = {"decay": self.decay, "per_update": self.per_update, "half_life": self.half_life}
        chosen = [f"{key}={value!r}" for key, value in values.items() if value is not None]
        if len(chosen) != 1:
            raise ValueError(
                f"EMA needs exactly one of decay, per_update and half_life; got {', '.join(chosen) or 'none'}."
            )
        check_choice("warmup", self.warmup, ("steps", "updates", "power", None))
        _set(self, start=check_int("start", self.start, minimum=0))
        if callable(self.decay):
            if self.warmup not in ("steps", None):
                raise ValueError(
                    f"warmup must not be set if decay is a function, which is its own schedule; got {self.warmup!r}."
                )
            _set(self, warmup=None)
        elif self.decay is not None:
            _set(self, decay=_checked_decay("decay", self.decay))
        elif self.per_update is not None:
            _set(self, per_update=_checked_decay("per_update", self.per_update))
        elif isinstance(self.half_life, str):
            _set(self, half_life=f"{_short(_percent(self.half_life))}%")
        elif _is_number(self.half_life) and self.half_life > 0.0:
            _set(self, half_life=float(self.half_life))
        else:
            raise ValueError(
                'half_life must be a positive number of optimizer steps, or a share of the run such as "3.5%"; '
                f"got {self.half_life!r}."
            )

    @property
    def name(self) -> str:
        if callable(self.decay):
            return f"ema-{getattr(self.decay, '__name__', type(self.decay).__name__).strip('<>')}"
        if self.decay is not None:
            return f"ema-{_short(self.decay)}"
        if self.per_update is not None:
            return f"ema-per-update-{_short(self.per_update)}"
        if isinstance(self.half_life, str):
            return f"ema-{self.half_life}"
        steps = self.half_life or 0.0
        return f"ema-half-life-{_short(steps) if steps < 100.0 else f'{steps:.0f}'}"

    def resolved(self, run: int | None) -> "EMA":
        if not isinstance(self.half_life, str):
            return self
        if run is None:
            raise ValueError(
                f'EMA(half_life="{self.half_life}") needs the length of the run, '
                "as in EMABank(model, averages, steps=epochs * len(loader))."
            )
        return EMA(half_life=_percent(self.half_life) * run / 100.0, warmup=self.warmup, start=self.start)

    def per_step(self, every: int) -> float:
        """The decay per optimizer step after the warm-up, in a bank that samples every `every` steps.

        >>> round(EMA(per_update=0.998).per_step(16), 6)
        0.999875
        """
        if self.per_update is not None:
            return per_step(self.per_update, every)
        if isinstance(self.half_life, str) or callable(self.decay):
            raise ValueError(f"The decay of {self} is not one number.")
        return self.decay if self.decay is not None else from_half_life(self.half_life or 1.0)

    def decay_over(self, elapsed: int, every: int) -> float:
        """The weight of the past over this many steps after the warm-up."""
        return self.per_update ** (elapsed / every) if self.per_update is not None else self.per_step(every) ** elapsed

    def decay_at(self, *, steps: int, elapsed: int, samples: int, every: int) -> float:
        if callable(self.decay):
            return _decay_from(self.decay, steps) ** elapsed
        decay = self.decay_over(elapsed, every)
        if self.warmup is None or decay == 1.0:
            return decay
        if self.warmup == "steps":
            return min(decay, warmup_decay(steps - 1) ** (elapsed / PAPER_PERIOD))
        if self.warmup == "updates":
            return min(decay, warmup_decay(samples) ** (elapsed / every))
        return min(decay, power_warmup_decay(steps) ** elapsed)

    def shortest_half_life(self, run: int) -> float:
        if callable(self.decay) or self.per_update is not None:
            return 0.0
        return self.half_life if isinstance(self.half_life, float) else half_life(self.per_step(1))

    def describe(self, every: int, run: int | None = None) -> str:
        if callable(self.decay):
            text = f"decay {_function_name(self.decay)}(step) per step"
        else:
            step = self.per_step(every)
            text = f"decay {format_decay(step)} per step, half-life {_format_steps(half_life(step))}"
            if run is not None and step < 1.0:
                text += f" ({_short(float(f'{100.0 * half_life(step) / run:.2g}'))} % of the run)"
            if step < 1.0 and self.warmup == "steps":
                text += f", warm-up {_format_steps(warmup_end(round(step**PAPER_PERIOD, 12)))}"
            elif step < 1.0 and self.warmup == "updates":
                text += f", warm-up {_format_steps(warmup_end(step**every) * every)}"
            elif step < 1.0 and self.warmup == "power":
                text += f", warm-up {_format_steps((1.0 - step) ** -1.5 - 1.0)}"
        return text + (f", after step {self.start}" if self.start else "")


@dataclass(frozen=True)
class Uniform(_Rule):
    """The plain mean of the samples at steps after `start`: SWA (Izmailov et al. 2018), tail averaging.

    The first sample has weight 1, so the initial weights are not in it.

    >>> [Uniform().decay_at(steps=16 * n + 16, elapsed=16, samples=n, every=16) for n in (0, 1, 3)]
    [0.0, 0.5, 0.75]
    """

    start: int = 0
    """The optimizer step after which samples count."""

    def __post_init__(self) -> None:
        _set(self, start=check_int("start", self.start, minimum=0))

    @property
    def name(self) -> str:
        return f"uniform-{self.start}" if self.start else "uniform"

    def decay_at(self, *, steps: int, elapsed: int, samples: int, every: int) -> float:
        return samples / (samples + 1)

    def shortest_half_life(self, run: int) -> float:
        return math.inf  # a mean does not forget

    def describe(self, every: int, run: int | None = None) -> str:
        return f"mean of the samples after step {self.start}" if self.start else "mean of all samples"


@dataclass(frozen=True)
class PowerEMA(_Rule):
    """A power-function average (Karras et al. 2023, EDM2): sample t weighs as t^γ, so its window grows with the run.

    `sigma_rel` is the width of the profile as a share of the run, at most 12^-½; 0.1 (the default) gives γ = 6.94. Or
    give `half_life_share`, the half-life as a share of the steps so far, at most ½.

    >>> PowerEMA(0.1).decay_at(steps=16, elapsed=16, samples=0, every=16)
    0.0
    >>> round(PowerEMA(half_life_share=0.05).gamma, 2)
    12.51
    """

    sigma_rel: float | None = None
    """The width of the profile, as a share of the run."""
    _: KW_ONLY
    half_life_share: float | None = None
    """The half-life, as a share of the steps so far."""

    def __post_init__(self) -> None:
        sigma, share = self.sigma_rel, self.half_life_share
        if sigma is not None and share is not None:
            raise ValueError(f"PowerEMA needs sigma_rel or half_life_share, not both; got {sigma!r} and {share!r}.")
        if share is None:
            sigma = 0.1 if sigma is None else sigma
            if not (_is_number(sigma) and 0.0 < sigma <= 12.0**-0.5):
                raise ValueError(
                    "sigma_rel must be a number above 0 and at most 12**-0.5 = 0.2887 (EDM2 uses 0.05 to 0.15); "
                    f"got {sigma!r}."
                )
            _set(self, sigma_rel=float(sigma))
        elif _is_number(share) and 0.0 < share <= 0.5:
            _set(self, half_life_share=float(share))
        else:
            raise ValueError(f"half_life_share must be a number above 0 and at most 0.5; got {share!r}.")

    @property
    def gamma(self) -> float:
        """The exponent: sample t weighs as t^γ."""
        if self.half_life_share is not None:
            return math.log(0.5) / math.log1p(-self.half_life_share) - 1.0
        return power_gamma(self.sigma_rel or 0.1)

    @property
    def name(self) -> str:
        if self.half_life_share is not None:
            return f"power-half-life-{_short(self.half_life_share)}"
        return f"power-{_short(self.sigma_rel or 0.1)}"

    def decay_at(self, *, steps: int, elapsed: int, samples: int, every: int) -> float:
        return (1.0 - elapsed / steps) ** (self.gamma + 1.0)

    def shortest_half_life(self, run: int) -> float:
        # At the end of the run; it begins with 0.
        return (1.0 - 0.5 ** (1.0 / (self.gamma + 1.0))) * run

    def describe(self, every: int, run: int | None = None) -> str:
        share = 100.0 * self.shortest_half_life(1)
        return f"half-life {share:.2g} % of the steps so far (sigma_rel {power_sigma_rel(self.gamma):.3g})"


@dataclass(frozen=True)
class Ramp(_Rule):
    """An EMA whose decay per step goes from `begin` to `end` over the run, for teachers: BYOL, DINO, I-JEPA.

    The first optimizer step has the decay `begin`; after `steps` of them it stays at `end`. Without `steps` the ramp
    lasts as long as the run (the bank then needs `steps=`). `shape` is half a cosine or a line. It has no warm-up.

    >>> [round(Ramp(0.9, 1.0, steps=4).decay_at(steps=t, elapsed=1, samples=t - 1, every=1), 4) for t in (1, 3, 5, 9)]
    [0.9, 0.95, 1.0, 1.0]
    """

    begin: float
    """The decay per step at the first step."""
    end: float = 1.0
    """The decay per step after the ramp."""
    _: KW_ONLY
    steps: int | None = None
    """How many optimizer steps the ramp takes; None: all of the run."""
    shape: Literal["cosine", "linear"] = "cosine"
    """How the decay changes between the two."""

    def __post_init__(self) -> None:
        _set(self, begin=_checked_decay("begin", self.begin), end=_checked_decay("end", self.end))
        if self.steps is not None:
            _set(self, steps=check_int("steps", self.steps, minimum=1))
        check_choice("shape", self.shape, ("cosine", "linear"))

    @property
    def name(self) -> str:
        return f"ramp-{_short(self.begin)}-{_short(self.end)}"

    def resolved(self, run: int | None) -> "Ramp":
        if self.steps is not None:
            return self
        if run is None:
            raise ValueError(
                f"Ramp({self.begin:g}, {self.end:g}) needs its length: pass steps=... to it, or the length of "
                "the run, as in EMABank(model, averages, steps=epochs * len(loader))."
            )
        return Ramp(self.begin, self.end, steps=run, shape=self.shape)

    def decay_at(self, *, steps: int, elapsed: int, samples: int, every: int) -> float:
        done = min(1.0, (steps - 1) / (self.resolved(None).steps or 1))
        rise = done if self.shape == "linear" else 0.5 - 0.5 * math.cos(math.pi * done)
        return ((1.0 - rise) * self.begin + rise * self.end) ** elapsed

    def shortest_half_life(self, run: int) -> float:
        return half_life(min(self.begin, self.end))

    def describe(self, every: int, run: int | None = None) -> str:
        ends = f"{format_decay(self.begin)} to {format_decay(self.end)}"
        return f"decay {ends} per step over {_format_steps(self.steps or 0)} ({self.shape})"


Rule = EMA | Uniform | PowerEMA | Ramp
_KINDS = {kind.__name__: kind for kind in (EMA, Uniform, PowerEMA, Ramp)}


def _set(rule: Rule, **values: object) -> None:
    """Give fields of a frozen rule their checked values, while it is being built."""
    for key, value in values.items():
        object.__setattr__(rule, key, value)


def as_rule(value: object) -> Rule:
    """A rule as it is; a number, or a function of the step, as the decay of an EMA."""
    if isinstance(value, Rule):
        return value
    if (isinstance(value, Real) and not isinstance(value, bool)) or (callable(value) and not isinstance(value, type)):
        return EMA(value)  # type: ignore[arg-type]
    raise ValueError(f"An average must be a decay from 0 to 1, or an EMA, Uniform, PowerEMA or Ramp; got {value!r}.")


# Saving --------------------------------------------------------------------------------------------------------------


def rule_to_dict(rule: Rule, steps: int = 0) -> dict[str, Any]:
    """A rule as plain values, for a state dict.

    A function cannot be saved: its name is saved instead, with some of its decays over `steps` steps, which
    `check_rule` compares when the state is loaded.
    """
    state = {"rule": type(rule).__name__, **{field.name: getattr(rule, field.name) for field in fields(rule)}}
    if isinstance(rule, EMA) and callable(rule.decay):
        last = max(1, steps)
        counts = sorted({last, *(2**power for power in range(last.bit_length()))})
        decays = [[count, _decay_from(rule.decay, count)] for count in counts]
        state["decay"] = {"function": _function_name(rule.decay), "decays": decays}
    return state


def rule_from_dict(state: Mapping[str, Any]) -> Rule:
    """The rule that `rule_to_dict` wrote."""
    if not isinstance(state, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"A saved rule must be a mapping; got a {type(state).__name__}.")
    arguments = dict(state)
    kind = arguments.pop("rule", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"{kind!r} is not a rule of this version; known are {', '.join(_KINDS)}.")
    try:
        return _KINDS[kind](**arguments)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"The fields {list(arguments)} do not make a rule {kind}: {error}.") from None


def check_rule(saved: Mapping[str, Any], rule: Rule) -> None:
    """Raise a ValueError unless a saved rule is this one; a function, unless it gives the decays that were saved."""
    function = saved.get("decay") if isinstance(saved, Mapping) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if not isinstance(function, Mapping):
        other = rule_from_dict(saved)
        if other != rule:
            raise ValueError(
                f"it was saved as {other}, this bank has it as {rule}: build the bank with the same rule "
                "and the same steps=."
            )
        return
    expected = rule_to_dict(rule)
    if {**saved, "decay": None} != {**expected, "decay": None} or not (isinstance(rule, EMA) and callable(rule.decay)):
        raise ValueError(
            f"it was saved with the function {function.get('function')!r} as its decay, this bank has it as {rule}: "
            "build the bank with the same rule."
        )
    try:
        decays = [(int(step), float(decay)) for step, decay in function["decays"]]
    except (KeyError, TypeError, ValueError):
        raise ValueError("the decays of its function are damaged: load another copy of the state.") from None
    for step, decay in decays:
        now = _decay_from(rule.decay, step)
        if not math.isclose(1.0 - now, 1.0 - decay, rel_tol=1e-6, abs_tol=1e-12):
            raise ValueError(
                f"the function {function.get('function')!r} gave the decay {decay!r} at step {step}, that of this bank "
                f"gives {now!r}: build the bank with the same function."
            )


def _decay_from(function: DecayFunction, step: int) -> float:
    return _checked_decay(f"{_function_name(function)}({step})", function(step))


def _checked_decay(what: str, value: object) -> float:
    if not (_is_number(value) and 0.0 <= value <= 1.0):
        raise ValueError(f"{what} must be a number from 0 to 1, the weight of the past; got {value!r}.")
    return float(value)


def _function_name(function: DecayFunction) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def _percent(text: str) -> float:
    number = text.removesuffix("%").strip()
    try:
        percent = float(number) if text.endswith("%") else math.nan
    except ValueError:
        percent = math.nan
    if not 0.0 < percent <= 100.0:
        raise ValueError(f'half_life must be a share of the run above 0 and at most 100, such as "3.5%"; got {text!r}.')
    return percent


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def check_int(argument: str, value: object, *, minimum: int | None = None) -> int:
    """Return an argument as an int; raise a ValueError unless it is a whole number, and large enough."""
    if not isinstance(value, Integral) or isinstance(value, bool) or (minimum is not None and value < minimum):
        least = "" if minimum is None else f", {minimum} or more"
        raise ValueError(f"{argument} must be a whole number{least}; got {value!r}.")
    return int(value)


def check_choice(argument: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raise a ValueError unless an argument has one of the allowed values."""
    if value not in allowed:
        raise ValueError(f"{argument} must be {' or '.join(map(repr, allowed))}; got {value!r}.")


# Printing ------------------------------------------------------------------------------------------------------------


def format_decay(decay: float) -> str:
    """A decay with three digits of its distance from 1.

    >>> format_decay(0.99987487), format_decay(0.99)
    ('0.999875', '0.99')
    """
    digits = f"{decay:g}" if decay in (0, 1) else f"{decay:.{2 - math.floor(math.log10(1 - decay))}f}"
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def _format_steps(steps: float) -> str:
    return f"{steps:,.0f} steps" if steps >= 100 else f"{steps:.3g} steps"


def _short(value: float) -> str:
    """0.998 as "0.998", 700.0000000000001 as "700": exact to a millionth of the value, and of its distance from 1."""
    close = 1e-6 * (min(value, 1.0 - value) if value <= 1.0 else value)
    return next(text for digits in range(1, 18) if abs(float(text := _plain(value, digits)) - value) <= close)


def _plain(value: float, digits: int) -> str:
    return f"{Decimal(f'{value:.{digits}g}').normalize():f}"


# A change of batch size, and merges shaped like a learning-rate decay -------------------------------------------------


def for_batch_size(decay: float, batch: int, to_batch: int) -> float:
    """The decay per step that remembers as many data samples at another batch size: α^κ, κ = to / from.

    Busbridge et al. 2023, "How to scale your EMA", which also scales the learning rate: by κ for SGD, by √κ for
    Adam.

    >>> round(for_batch_size(0.9999, 256, 4096), 6)
    0.998401
    """
    check_int("batch", batch, minimum=1)
    check_int("to_batch", to_batch, minimum=1)
    return decay ** (to_batch / batch)


DecayShape = Literal["linear", "cosine", "sqrt"]
DecayControl = Literal["reversed", "scrambled"]

DECAY_SHAPES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 + 0.5 * math.cos(math.pi * done),
    "sqrt": lambda done: 1.0 - done**0.5,
}
"""The factor of the learning rate, by the share of the decay that is done."""


def decay_merge_weights(steps: Sequence[int], shape: DecayShape, *, control: DecayControl | None = None) -> list[float]:
    """Weights for checkpoints at these steps, so that their sum approximates the model after a learning-rate decay.

    With wⱼ the mean factor of the rate between the checkpoints j - 1 and j, the decay would have ended at
    θ₀ + Σ wⱼ (θⱼ - θⱼ₋₁). So checkpoint j has the weight wⱼ - wⱼ₊₁, and the first 1 - w₁. A linear decay gives the
    mean, in which the first and the last count about half. (Tian et al. 2025, "WSM", arXiv 2507.17634.)

    Args:
        steps: in ascending order, at constant learning rate; the decay begins at the first and ends at the last.
        shape: the shape of the decay.
        control: "reversed" or "scrambled" gives the same weights to the checkpoints in another order.

    >>> decay_merge_weights([100, 101, 102, 103, 104], "linear")
    [0.0, 0.25, 0.25, 0.25, 0.25]
    >>> [round(weight, 3) for weight in decay_merge_weights([0, 100, 200, 300, 400], "sqrt")]
    [0.331, 0.278, 0.18, 0.145, 0.066]
    """
    check_choice("shape", shape, tuple(DECAY_SHAPES))
    check_choice("control", control, (None, "reversed", "scrambled"))
    if not steps or any(later <= earlier for earlier, later in pairwise(steps)):
        raise ValueError(f"steps must ascend; got {list(steps)}.")
    factor, window = DECAY_SHAPES[shape], steps[-1] - steps[0]
    means: list[float] = []
    for earlier, later in pairwise(steps):
        between = range(earlier, later, max(1, (later - earlier) // 10_000))  # a step may be a token: enough of them
        means.append(math.fsum(factor((step - steps[0]) / window) for step in between) / len(between))
    weights = [earlier - later for earlier, later in pairwise([1.0, *means, 0.0])]
    if control == "reversed":
        weights.reverse()
    elif control == "scrambled":
        Random(0).shuffle(weights)
    return weights
