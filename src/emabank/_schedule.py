"""The averages of a bank by name, each with its rule and its progress: the weight of the next sample in each.

Python ints and floats only; no tensor, no model.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from numbers import Real
from reprlib import repr as short
from typing import Any, cast

from emabank.rules import EMA, PowerEMA, Uniform, as_rule, rule_from_dict, rule_to_dict

Rule = EMA | Uniform | PowerEMA

LIVE = "live"  # the name that means the live weights
FORMAT = 1  # of the state dict


@dataclass(slots=True)
class Progress:
    """How far one average has come, in optimizer steps of the bank."""

    begin: int = 0  # the step after which it begins
    origin: int = 0  # the step at which it was built or reset
    last: int = 0  # the step of its last sample
    samples: int = 0  # samples since it began
    decay: float | None = None  # of the last sample


_STATE = ("format", "every", "num_steps", "num_updates", "num_skipped", "averages", "recomputed")
_AVERAGE = ("rule", *(field.name for field in fields(Progress)), "tensors")
_RECOMPUTED = ("step", "tensors")
_HELP = "The state is damaged, or not that of a bank: load another copy of it."


class AverageSchedule:
    """The rules of a bank's averages, and their progress.

    >>> schedule = AverageSchedule([0.5, Uniform()], every=1)
    >>> schedule.sample_weights(1)
    [0.9, 1.0]
    >>> schedule.sample_weights(2)  # the warm-up caps the decay at 2/11
    [0.8181818181818181, 0.5]
    """

    def __init__(self, averages: object, every: int) -> None:
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise ValueError(f"every must be a positive integer (optimizer steps between samples); got {every!r}.")
        self.rules = _named_rules(averages)
        self.progress = {name: Progress(begin=rule.start) for name, rule in self.rules.items()}
        self.every = every
        # The decay of an EMA after its warm-up; other rules never settle.
        self._settled = {n: r.per_update(every) if isinstance(r, EMA) else None for n, r in self.rules.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the averages, in their order."""
        return tuple(self.rules)

    def resolve(self, name: object) -> str:
        """The name of an average, given by name or by the number of its `EMA(decay=)`, or "live"."""
        if isinstance(name, str) and (name == LIVE or name in self.rules):
            return name
        if isinstance(name, Real) and not isinstance(name, bool):
            found = [key for key, rule in self.rules.items() if isinstance(rule, EMA) and rule.decay == name]
            if len(found) == 1:
                return found[0]
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
            elif progress.decay is not None and progress.decay == self._settled[name] and elapsed == self.every:
                decay = progress.decay
                progress.samples += 1
            else:
                decay = self._decay_at(name, step, progress.last)
                progress.samples, progress.decay = progress.samples + 1, decay
            progress.last = step
            weights.append(1.0 - decay)
        return weights

    def is_new(self, step: int) -> bool:
        """Whether a sample at this step would move any average."""
        return any(progress.last != step for progress in self.progress.values())

    def has_begun(self, name: str) -> bool:
        """Whether an average holds anything but its initial weights."""
        return self.progress[name].samples > 0

    def reset(self, name: str, step: int) -> None:
        """Count one average from this step on."""
        self.progress[name] = Progress(max(step, self.rules[name].start), origin=step, last=step)

    def decay(self, name: str, step: int) -> float:
        """The decay of the last sample; before any, of the next."""
        last = self.progress[name].decay
        if last is not None:
            return last
        first = (max(self.progress[name].begin, step) // self.every + 1) * self.every
        return self._decay_at(name, first, max(self.progress[name].origin, first - self.every))

    def _decay_at(self, name: str, step: int, last: int) -> float:
        progress = self.progress[name]
        return self.rules[name].decay_at(
            steps=step - progress.begin, elapsed=step - last, samples=progress.samples, every=self.every
        )

    # State ------------------------------------------------------------------------------------------------------------

    def state(self, name: str) -> dict[str, Any]:
        """One average's rule and progress as plain values."""
        return {"rule": rule_to_dict(self.rules[name]), **asdict(self.progress[name])}

    def load(self, name: str, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.progress[name] = Progress(**{field.name: state[field.name] for field in fields(Progress)})

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
        rule = rule_from_dict(saved["rule"])
        if rule != self.rules[name]:
            raise ValueError(
                f"The average {name!r} was saved as {rule}, this bank has it as {self.rules[name]}: "
                "build the bank with the same rule."
            )
        last = _checked_count(f"{what}: last", saved["last"], steps)
        origin = _checked_count(f"{what}: origin", saved["origin"], last)
        _checked_count(f"{what}: samples", saved["samples"], updates)
        begin, expected = saved["begin"], max(origin, rule.start)
        if type(begin) is not int or begin != expected:
            raise ValueError(f"{what}: begin must be {expected}; got {short(begin)}. {_HELP}")
        decay = saved["decay"]
        if decay is not None and not (type(decay) in (int, float) and 0.0 <= decay <= 1.0):
            raise ValueError(f"{what}: decay must be None or a number from 0 to 1; got {short(decay)}. {_HELP}")


def _checked_mapping(what: str, value: object, keys: Sequence[str] | None = None) -> Mapping[str, Any]:
    """The value, if it is a mapping and (where keys are said) has exactly those."""
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
        named = [(name, as_rule(given)) for name, given in averages.items()]
    else:
        several = list(averages) if isinstance(averages, Sequence) and not isinstance(averages, str) else [averages]
        rules = [as_rule(given) for given in several]
        named = [(rule.name, rule) for rule in rules]
    if not named:
        raise ValueError("averages must have at least one average, as in EMABank(model, [0.998]); got none.")
    for name, rule in named:
        if not isinstance(name, str) or name in ("", LIVE):
            raise ValueError(f"{name!r} cannot name an average: names are texts, and {LIVE!r} means the live weights.")
        if [other for other, _ in named].count(name) > 1:
            raise ValueError(
                f"Two averages are called {name!r} (one is {rule}): give them names, as in "
                'EMABank(model, {"first": ..., "second": ...}).'
            )
    return dict(named)
