"""The averages of a bank by name, each with its rule and its progress: the weight of the next sample in each.

Python ints and floats only; no tensor, no model.
"""

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from numbers import Real
from reprlib import repr as short
from typing import Any, cast

from emabank.rules import EMA, LIVE, Rule, as_rule, check_int, check_rule, rule_to_dict

FORMAT = 2  # of the state dict
HALF_LIVES = (0.44, 0.88, 1.8, 3.5, 7.1)
"""The half-lives of the paper's five averages, in percent of its runs."""
_PERIODS = (16, 8, 4, 2, 1)


@dataclass(slots=True)
class Progress:
    """How far one average has come, in optimizer steps of the bank."""

    begin: int = 0  # the step after which it begins
    origin: int = 0  # the step at which it was built or reset
    last: int = 0  # the step of its last sample
    samples: int = 0  # samples since it began
    decay: float | None = None  # per step, at the last sample


_STATE = ("format", "every", "num_steps", "num_updates", "num_skipped", "averages", "recomputed")
_AVERAGE = ("rule", *(field.name for field in fields(Progress)), "tensors")
_RECOMPUTED = ("step", "tensors")
_HELP = "The state is damaged, or not that of a bank: load another copy of it."


class AverageSchedule:
    """The rules of a bank's averages, and their progress."""

    def __init__(self, averages: object, every: int | None = None, steps: int | None = None) -> None:
        every = None if every is None else check_int("every", every, minimum=1)
        steps = None if steps is None else check_int("steps", steps, minimum=1)
        if averages is None:
            if steps is None:
                raise ValueError(
                    "averages must be decays or rules, as in EMABank(model, [0.999]); or give the length of the run, "
                    "as in EMABank(model, steps=epochs * len(loader)), for five averages."
                )
            averages = [EMA(half_life=f"{percent}%", warmup=None) for percent in HALF_LIVES]
        named = _named_rules(averages)
        self.rules: dict[str, Rule] = {name: rule.resolved(steps) for name, rule in named.items()}
        self.has_shares = self.rules != named  # of the run
        self.progress = {name: Progress(begin=rule.start) for name, rule in self.rules.items()}
        self.steps = steps
        self.every = every or self._default_period()
        self._settled: set[str] = set()  # averages whose decay over a whole period does not change any more
        self._final = {
            name: rule.decay_over(self.every, self.every)
            for name, rule in self.rules.items()
            if isinstance(rule, EMA) and not callable(rule.decay)
        }

    def _default_period(self) -> int:
        """The longest period that samples the fastest average 16 times in its half-life; 1 for a run of any length."""
        if self.steps is None:
            return 1
        fastest = min(rule.shortest_half_life(self.steps) for rule in self.rules.values())
        return next((period for period in _PERIODS if 16 * period <= fastest), 1)

    def warn_if_undersampled(self) -> None:
        """Warn the user who builds a bank of averages with too few samples in a half-life."""
        for name, rule in self.rules.items():
            fastest = rule.shortest_half_life(self.steps or sys.maxsize)
            if self.every > 1 and 0.0 < fastest < 4 * self.every:
                warnings.warn(
                    f"{name} has a half-life of {fastest:.3g} steps, less than four periods of {self.every}, so few "
                    f"samples make it up: choose every={max(1, int(fastest) // 16)}, or a longer half-life.",
                    stacklevel=3,
                )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the averages, in their order."""
        return tuple(self.rules)

    def resolve(self, name: object) -> str:
        """The name of an average, given by name or by the number of its `EMA(decay=)`, or "live"."""
        if isinstance(name, str) and (name == LIVE or name in self.rules):
            return name
        if isinstance(name, Real) and not isinstance(name, bool):
            matches = [key for key, rule in self.rules.items() if isinstance(rule, EMA) and rule.decay == name]
            if len(matches) == 1:
                return matches[0]
        raise KeyError(f"There is no average {name!r}; there are {', '.join(self.names)} (and {LIVE!r}).")

    def average(self, name: object) -> str:
        """Like `resolve`, but "live" raises."""
        resolved = self.resolve(name)
        if resolved == LIVE:
            raise KeyError(f"{LIVE!r} is not an average; there are {', '.join(self.names)}.")
        return resolved

    # Counting ---------------------------------------------------------------------------------------------------------

    def sample_weights(self, step: int) -> list[float]:
        """Count a sample at this step; return its weight in each average."""
        weights: list[float] = []
        for name, progress in self.progress.items():
            elapsed = step - progress.last
            if step <= progress.begin:
                decay = 0.0  # not begun: the last sample at or before its start becomes its initial weights
            elif elapsed == 0:
                decay = 1.0  # flushed or reset at this very step
            elif elapsed == self.every and name in self._settled:
                decay = self._final[name]
                progress.samples += 1
            else:
                decay = self._decay_at(name, step, elapsed)
                progress.samples, progress.decay = progress.samples + 1, decay ** (1.0 / elapsed)
                if elapsed == self.every and decay == self._final.get(name):
                    self._settled.add(name)
            progress.last = step
            weights.append(1.0 - decay)
        return weights

    def _decay_at(self, name: str, step: int, elapsed: int) -> float:
        progress = self.progress[name]
        return self.rules[name].decay_at(
            steps=step - progress.begin, elapsed=elapsed, samples=progress.samples, every=self.every
        )

    def is_new(self, step: int) -> bool:
        """Whether a sample at this step would move any average."""
        return any(progress.last != step for progress in self.progress.values())

    def has_begun(self, name: str) -> bool:
        """Whether an average holds anything but its initial weights."""
        return self.progress[name].samples > 0

    def reset(self, name: str, step: int) -> None:
        """Count one average from this step on."""
        self.progress[name] = Progress(max(step, self.rules[name].start), origin=step, last=step)
        self._settled.discard(name)

    def decay(self, name: str, step: int) -> float:
        """The decay per step at the last sample; before any, at the next."""
        last = self.progress[name].decay
        if last is not None:
            return last
        first = (max(self.progress[name].begin, step) // self.every + 1) * self.every
        elapsed = min(first - self.progress[name].origin, self.every)
        return self._decay_at(name, first, elapsed) ** (1.0 / elapsed)

    def equal_by_warmup(self) -> list[str]:
        """The averages that are equal so far, because the same warm-up has held all of them down."""
        groups: dict[object, list[str]] = {}
        for name, rule in self.rules.items():
            progress = self.progress[name]
            if not isinstance(rule, EMA) or callable(rule.decay) or progress.decay is None:
                continue
            if progress.decay < rule.per_step(self.every) - 1e-15:  # it is a root, and as such rounded
                groups.setdefault((rule.warmup, progress.begin, progress.origin), []).append(name)
        return max((group for group in groups.values() if len(group) > 1), key=len, default=[])

    # State ------------------------------------------------------------------------------------------------------------

    def state(self, name: str) -> dict[str, Any]:
        """One average's rule and progress as plain values."""
        progress = self.progress[name]
        return {"rule": rule_to_dict(self.rules[name], progress.last - progress.begin), **asdict(progress)}

    def load(self, name: str, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.progress[name] = Progress(**{field.name: state[field.name] for field in fields(Progress)})
        self._settled.discard(name)

    def check_state(self, state: object) -> None:
        """Raise a ValueError unless a state is complete and comes from a bank with these averages and this period.

        Tensors are not checked here.
        """
        saved = _checked_mapping("The state", state)
        if "format" in saved and _checked_count("format", saved["format"]) != FORMAT:
            raise ValueError(
                f"The state has format {saved['format']}, this version reads format {FORMAT}: "
                "load it with the version of emabank that saved it."
            )
        _checked_mapping("The state", saved, _STATE)
        if _checked_count("every", saved["every"]) != self.every:
            raise ValueError(
                f"The state was saved with every={saved['every']}, this bank has every={self.every}: "
                f"build the bank with every={saved['every']}."
            )
        steps = _checked_count("num_steps", saved["num_steps"])
        updates = _checked_count("num_updates", saved["num_updates"], steps)
        _checked_count("num_skipped", saved["num_skipped"])
        averages = _checked_mapping("averages", saved["averages"])
        if set(averages) != set(self.names):
            raise ValueError(
                f"The state holds the averages {', '.join(map(str, averages))}; this bank has {', '.join(self.names)}: "
                "build the bank with the same averages."
            )
        for name, average in averages.items():
            self._check_average_state(name, average, steps, updates)
        recomputed = _checked_mapping("recomputed", saved["recomputed"])
        unknown = [name for name in recomputed if name not in (LIVE, *self.names)]
        if unknown:
            raise ValueError(
                f"recomputed holds statistics of {short(unknown)}, and the bank has no such average. {_HELP}"
            )
        for name, statistics in recomputed.items():
            what = f"recomputed[{name!r}]"
            _checked_count(f"{what}: step", _checked_mapping(what, statistics, _RECOMPUTED)["step"], steps)

    def _check_average_state(self, name: str, average: object, steps: int, updates: int) -> None:
        what = f"The saved average {name!r}"
        saved = _checked_mapping(what, average, _AVERAGE)
        try:
            check_rule(saved["rule"], self.rules[name])
        except ValueError as error:
            raise ValueError(f"{what} does not fit: {error}") from None
        last = _checked_count(f"{what}: last", saved["last"], steps)
        origin = _checked_count(f"{what}: origin", saved["origin"], last)
        _checked_count(f"{what}: samples", saved["samples"], updates)
        begin, expected = saved["begin"], max(origin, self.rules[name].start)
        if type(begin) is not int or begin != expected:
            raise ValueError(f"{what}: begin must be {expected}; got {short(begin)}. {_HELP}")
        decay = saved["decay"]
        if decay is not None and not (type(decay) in (int, float) and 0.0 <= decay <= 1.0):
            raise ValueError(f"{what}: decay must be None or a number from 0 to 1; got {short(decay)}. {_HELP}")


def _checked_mapping(what: str, value: object, keys: Sequence[str] | None = None) -> Mapping[str, Any]:
    """The value, if it is a mapping and, where there are `keys`, has exactly those."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} must be a mapping; got {short(value)}. {_HELP}")
    saved = cast("Mapping[str, Any]", value)
    if keys is not None and set(saved) != set(keys):
        missing, unknown = [key for key in keys if key not in saved], [key for key in saved if key not in keys]
        faults = [f"missing: {short(missing)}"] * bool(missing) + [f"unknown: {short(unknown)}"] * bool(unknown)
        raise ValueError(f"{what} has keys {', '.join(faults)}. {_HELP}")
    return saved


def _checked_count(what: str, value: object, most: int = sys.maxsize) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{what} must be a whole number from 0 to {most}; got {short(value)}. {_HELP}")
    return value


def _named_rules(averages: object) -> dict[str, Rule]:
    if isinstance(averages, Mapping):
        named = [(name, as_rule(rule)) for name, rule in averages.items()]
    else:
        several = averages if isinstance(averages, Sequence) and not isinstance(averages, str) else [averages]
        named = [(rule.name, rule) for rule in map(as_rule, several)]
    if not named:
        raise ValueError("averages must have at least one average, as in EMABank(model, [0.999]); got none.")
    for name, rule in named:
        if not isinstance(name, str) or name in ("", LIVE):
            raise ValueError(f"{name!r} cannot name an average: names are texts, and {LIVE!r} means the live weights.")
        if [other for other, _ in named].count(name) > 1:
            raise ValueError(
                f"Two averages are called {name!r} (one is {rule}): give them names, as in "
                'EMABank(model, {"first": ..., "second": ...}).'
            )
    return dict(named)
