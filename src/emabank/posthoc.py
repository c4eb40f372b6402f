"""Choose afterwards: snapshots of power-function averages during training, and from them any average at any step.

After Karras et al. 2023 (EDM2), section 3.2, but for every rule of this package, and with the weights that samples
really have in a bank. Every average is a weighted mean of the samples a bank has taken and of its initial weights, so
a mixture of averages is one too; the mixture nearest to a given average is a least-squares problem in these weights.
"""

import math
import os
import re
import secrets
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from emabank._distributed import ProcessGroups
from emabank.checkpoint import read_state, write_state
from emabank.rules import PowerEMA, Rule, as_rule, rule_from_dict

if TYPE_CHECKING:
    from emabank.bank import EMABank


# Sample profiles: how much each sample weighs in an average ----------------------------------------------------------

SPREAD = 0.1
"""How much the samples of a run are assumed to differ, relative to their norm. It converts the rounding of stored
averages into an error of sample weights. Early in training samples differ more, at the end less."""

_EXACT = 4096  # up to this many samples are fitted one by one; of more, distant ones are binned
_FINENESS = 512  # a bin spans this fraction of its distance from the end
_LEAST = 1e-9  # of noise, so that nearly equal averages can still be solved for


def profile(rule: Rule, step: int, *, every: int) -> Tensor:
    """The weights of the initial weights and of each sample at a step, in float64; they sum to 1.

    >>> from emabank import EMA, Uniform
    >>> profile(Uniform(), 3, every=1)
    tensor([0.0000, 0.3333, 0.3333, 0.3333], dtype=torch.float64)
    >>> profile(EMA(per_update=0.5, warmup=None), 5, every=2)
    tensor([0.2500, 0.2500, 0.5000], dtype=torch.float64)
    """
    return weights_of(decays(rule, step, every=every))


def decays(rule: Rule, step: int, *, every: int) -> Tensor:
    """The decay of each sample up to a step, after a 0 for the initial weights.

    >>> from emabank import EMA
    >>> decays(EMA(per_update=0.5, warmup=None, start=3), 6, every=2)
    tensor([0.0000, 0.0000, 0.5000, 0.5000], dtype=torch.float64)
    """
    values = [0.0]
    samples = 0
    for at in range(every, step + 1, every):
        if at <= rule.start:
            values.append(0.0)  # the last sample at or before its start replaces the initial weights
            continue
        values.append(rule.decay_at(steps=at - rule.start, elapsed=every, samples=samples, every=every))
        samples += 1
    return torch.tensor(values, dtype=torch.float64)


def weights_of(decays: Tensor) -> Tensor:
    """The weight of each sample: (1 - decay) of its own, times the decays of all later ones.

    >>> weights_of(torch.tensor([0.0, 0.5, 0.25]))
    tensor([0.1250, 0.1250, 0.7500])
    """
    first = int((decays == 0).nonzero().max())  # everything before it is forgotten
    later = decays[first + 1 :].log().flip(0).cumsum(0).flip(0).exp()
    remaining = torch.cat([later, later.new_ones(1)])
    weights = torch.zeros_like(decays)
    weights[first:] = (1.0 - decays[first:]) * remaining
    return weights


class Mixture(NamedTuple):
    """Coefficients that mix averages into another one, and how close they get."""

    coefficients: list[float]
    """They sum to 1, so that a constant stays what it is."""
    error: float
    """Distance of the sample weights from the target's, relative to the target's norm. Rounding is part of it, for
    samples that differ by `SPREAD`."""
    rounding: float
    """Relative error of the mixed weights that comes from rounding."""


def mixture(profiles: Iterable[Tensor], target: Tensor, roundings: Sequence[float]) -> Mixture:
    """The mixture of profiles that is nearest to a target. `profiles` is iterated several times.

    A profile may be shorter than the target: later samples weigh nothing in it. `roundings` are the relative errors of
    the stored averages. Large coefficients of opposite signs would amplify these, so they are part of the objective.

    >>> first, second = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])
    >>> mixed = mixture([first, second], torch.tensor([0.75, 0.25]), [6e-8, 6e-8])
    >>> [round(coefficient, 6) for coefficient in mixed.coefficients], mixed.error < 1e-4
    ([0.5, 0.5], True)
    """
    lengths = [len(weights) for weights in profiles]
    bins = _Bins(len(target), lengths)
    noise = torch.tensor(roundings, dtype=torch.float64)
    columns = torch.stack([bins.of(weights) for weights in profiles], dim=1)
    coefficients = _solve(columns, bins.of(target), noise / SPREAD)
    difference = -target.to(torch.float64)
    for coefficient, weights in zip(coefficients, profiles, strict=True):
        difference[: len(weights)] += coefficient * weights
    rounding = float(torch.linalg.vector_norm(noise * torch.tensor(coefficients, dtype=torch.float64)))
    length = float(torch.linalg.vector_norm(target.to(torch.float64)))
    error = math.hypot(float(torch.linalg.vector_norm(difference)), rounding / SPREAD) / length
    return Mixture(coefficients, error, rounding)


def _solve(columns: Tensor, target: Tensor, noise: Tensor) -> list[float]:
    """Least squares with coefficients that sum to 1: the last one is eliminated."""
    count = columns.shape[1]
    if count == 1:
        return [1.0]
    columns = torch.cat([columns, torch.diag(noise.clamp_min(_LEAST))])
    target = torch.cat([target, target.new_zeros(count)])
    last = columns[:, -1:]
    # The last digits of the default driver differ from call to call.
    solution: Tensor = torch.linalg.lstsq(columns[:, :-1] - last, target.unsqueeze(1) - last, driver="gels").solution
    others: list[float] = solution[:, 0].tolist()
    return [*others, 1.0 - math.fsum(others)]


class _Bins:
    """Neighbouring samples that are fitted together. Near the end, where windows are short, each sample is a bin; and
    every profile ends where a bin does.
    """

    def __init__(self, length: int, lengths: Sequence[int]) -> None:
        edges = {0, length, *lengths}
        if length <= _EXACT:
            edges.update(range(length))
        else:
            edge = length
            while edge > 0:
                edge -= max(1, (length - edge) // _FINENESS)
                edges.add(max(0, edge))
        starts = torch.tensor(sorted(edges))
        self._sizes = starts.diff()
        self._bin = torch.repeat_interleave(torch.arange(len(self._sizes)), self._sizes)

    def of(self, weights: Tensor) -> Tensor:
        """The weight of each bin, scaled so that a constant profile keeps its norm."""
        sums = torch.zeros(len(self._sizes), dtype=torch.float64)
        sums.index_add_(0, self._bin[: len(weights)], weights.to(torch.float64))
        return sums / self._sizes.sqrt()


__all__ = ["Snapshots", "Synthesis", "snapshot_steps", "synthesize", "synthesize_many"]

Place = tuple[int, str]
"""The step of a snapshot, and which of its averages."""

_FILE = re.compile(r"step-(\d{9,})\.pt")
_KIND = "posthoc"
_PRECISIONS = (None, torch.float32, torch.float16, torch.bfloat16)

# Writing -------------------------------------------------------------------------------------------------------------


class Snapshots:
    """Writes the power-function averages of a bank to a folder, whenever so many steps have passed, for `synthesize`.

    The bank needs two of them with different widths; `PowerEMA(0.05)` and `PowerEMA(0.1)` are a good pair. Build it
    where training begins, or when the bank has been loaded to go on: the initial weights are kept as well, and
    snapshots of later steps, which a training has left that is now resumed from before them, are removed. Call
    `update()` after each `bank.update()`, or less often.

    Each snapshot holds the id of its training, so that those of another one are never mixed in: `run`, or by default a
    random one, which a training that goes on finds in the folder.

    A snapshot of two averages takes 8 bytes a parameter; `dtype=torch.float16` makes it 4. Where several processes
    train one model, all of them have a `Snapshots`, and the first of them writes.

    >>> import tempfile
    >>> from torch import nn
    >>> from emabank import EMABank
    >>> bank = EMABank(nn.Linear(2, 1), [PowerEMA(0.05), PowerEMA(0.1)], every=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     snapshots = Snapshots(bank, folder, every_steps=2)
    ...     for _ in range(4):
    ...         _ = bank.update(), snapshots.update()
    ...     snapshot_steps(folder)
    [0, 2, 4]
    """

    def __init__(
        self,
        bank: "EMABank",
        folder: str | os.PathLike[str],
        *,
        every_steps: int,
        dtype: torch.dtype | None = None,
        run: str | None = None,
    ) -> None:
        if not isinstance(every_steps, int) or isinstance(every_steps, bool) or every_steps < 1:
            raise ValueError(f"every_steps={every_steps!r}: give the number of steps between two snapshots, 1 or more.")
        if dtype not in _PRECISIONS:
            raise ValueError(
                f"dtype={dtype!r}: give torch.float32, torch.float16 or torch.bfloat16, or None for that of the bank."
            )
        self._names = [name for name in bank.names if isinstance(bank.rule(name), PowerEMA)]
        if len({bank.rule(name) for name in self._names}) < 2:
            raise ValueError(
                f"Snapshots need two power-function averages of different widths, and the bank has "
                f"{', '.join(bank.names)}: build it with EMABank(model, [..., PowerEMA(0.05), PowerEMA(0.1)])."
            )
        self._bank, self._folder, self._every_steps, self._dtype = bank, Path(folder), every_steps, dtype
        self._processes = ProcessGroups.of(bank.model)
        self._warned = False
        self._run = self._tidied(run) if self._writes else ""
        self._passed = bank.num_steps // every_steps
        # Its own step as well: a training may have been killed between a checkpoint and the snapshot of that step.
        if bank.num_steps % every_steps == 0 and (bank.num_updates or not bank.num_steps):
            self.save()

    def update(self) -> bool:
        """Write a snapshot if one is due; True when it did (on the process that writes, when it wrote)."""
        passed = self._bank.num_steps // self._every_steps
        if passed == self._passed or not self._bank.num_updates:
            return False
        self.save()
        return True

    def save(self) -> None:
        """Write a snapshot now, in the place of one of the same step: at the end of a training, say."""
        bank = self._bank
        if bank.num_steps and not bank.num_updates:
            raise RuntimeError(
                f"At step {bank.num_steps} no average has begun (the bank samples every {bank.every} steps), and a "
                "snapshot would hold live weights: save it after the first sample."
            )
        sharded = self._processes is not None and ProcessGroups.of_sharded(bank.model) is not None
        if self._writes or sharded:  # shards are gathered by all of them together
            state = self._state()
            if self._writes:
                write_state(_path(self._folder, bank.num_steps), state, kind=_KIND)
        self._passed = bank.num_steps // self._every_steps

    @property
    def _writes(self) -> bool:
        return self._processes is None or self._processes.is_first

    def _state(self) -> dict[str, Any]:
        bank = self._bank
        averaged = bank.averaged_keys()
        averages: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        keys: list[str] = []
        digits = {"kept": 0.0, "stored": 0.0}
        for name in self._names:
            weights = bank.weights(name, batchnorm="averaged", full=True)
            kept = {key: value for key, value in weights.items() if key in averaged}
            stored = {key: self._stored(value) for key, value in kept.items()}
            digits = {"kept": _precision(kept.values()), "stored": _precision(stored.values())}
            averages[name] = {**bank.standing(name), "tensors": stored}
            rest = {key: value for key, value in weights.items() if key not in averaged}
            keys = list(weights)
        state = {
            "run": self._run,
            "step": bank.num_steps,
            "every": bank.every,
            "skipped": bank.num_skipped,
            "digits": digits,
            "averages": averages,
            "rest": rest,
            "keys": keys,
        }
        irregular = _unusable_reason(state)
        if irregular and not self._warned:
            self._warned = True
            warnings.warn(
                f"The snapshot of step {bank.num_steps} and all later ones will not do for synthesize(): {irregular}.",
                stacklevel=4,
            )
        return state

    def _stored(self, tensor: Tensor) -> Tensor:
        if self._dtype is None or not tensor.is_floating_point() or tensor.dtype.itemsize <= self._dtype.itemsize:
            return tensor
        small = tensor.to(self._dtype)
        return small if bool(small.isfinite().all()) else tensor  # beyond what half precision can hold

    def _tidied(self, run: str | None) -> str:
        """Remove what comes after the bank's step, refuse a folder of something else; return the id of the training."""
        self._folder.mkdir(parents=True, exist_ok=True)
        there, step = _steps_in(self._folder), self._bank.num_steps
        later = [each for each in there if each > step]
        if later and step == 0:
            raise ValueError(
                f"{self._folder} has snapshots up to step {max(later)}, and the bank stands at step 0: build Snapshots "
                "after bank.load_state_dict() to go on with that training, or give another folder for a new one."
            )
        for each in later:
            there.pop(each).unlink()
        if there and step:
            last = max(there)
            kept = _read(there[last], last)
            here = {name: self._bank.standing(name)["rule"] for name in self._names}
            if kept["every"] != self._bank.every or _rules_of(kept) != here:
                raise ValueError(
                    f"{there[last]} holds {', '.join(kept['averages'])} of a bank with every={kept['every']}, which is "
                    f"not this one ({', '.join(self._names)}, every={self._bank.every}): give another folder."
                )
            if run not in (None, kept["run"]):
                raise ValueError(f"{there[last]} is of the training {kept['run']!r}, not {run!r}: give another folder.")
            return kept["run"]
        return secrets.token_hex(8) if run is None else run


# Putting together ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Synthesis:
    """An average that was put together afterwards, and how good it is.

    Attributes:
        weights: a state dict of the model, as `bank.weights(name)` would have given it.
        step: the step that it is the average of.
        error: how far the weights of the samples in it are from those in the true average, over the length of these
            as a vector. Near 0 it is that average; above 0.5 it is another one.
        rounding: by which share of their length the weights are off because snapshots are stored with few digits.
        coefficients: of each snapshot and average; they add up to 1.
    """

    weights: dict[str, Any]
    step: int
    error: float
    rounding: float
    coefficients: dict[Place, float]


def synthesize(folder: str | os.PathLike[str], rule: Rule | float, *, at_step: int | None = None) -> Synthesis:
    """The average that a bank would have had at a step (None: at the last snapshot), put together from snapshots.

    A number is the decay of an `EMA`. Only snapshots up to that step are used. A mean over a window is
    `Uniform(start=at_step - window)`. What is not averaged (counters, buffers) comes from the last of them; so do
    batch-norm statistics that the bank copies. Look at `error` before you use it; docs/posthoc.md says how many
    snapshots make it how large.

    >>> import tempfile
    >>> from torch import nn
    >>> from emabank import EMA, EMABank
    >>> model = nn.Linear(2, 1)
    >>> bank = EMABank(model, [PowerEMA(0.05), PowerEMA(0.1), EMA(0.8)], every=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     snapshots = Snapshots(bank, folder, every_steps=1)
    ...     for _ in range(9):
    ...         _ = nn.init.normal_(model.weight)
    ...         _ = bank.update(), snapshots.update()
    ...     found = synthesize(folder, EMA(0.8), at_step=9)
    >>> torch.allclose(found.weights["weight"], bank.weights(0.8)["weight"], atol=1e-4), found.error < 0.01
    (True, True)
    """
    return synthesize_many(folder, {"only": rule}, at_step=at_step)["only"]


def synthesize_many(
    folder: str | os.PathLike[str], rules: Mapping[str, Rule | float], *, at_step: int | None = None
) -> dict[str, Synthesis]:
    """The same for several rules at one step, by name: each snapshot is read once, and one at a time.

    >>> from emabank import EMA
    >>> synthesize_many("no/such/folder", {"slow": EMA(half_life=100)})
    Traceback (most recent call last):
    FileNotFoundError: There are no snapshots in no/such/folder; emabank.posthoc.Snapshots writes them.
    """
    wanted = {name: as_rule(rule).resolved(None) for name, rule in rules.items()}
    there = _steps_in(Path(folder))
    if not there:
        raise FileNotFoundError(f"There are no snapshots in {folder}; emabank.posthoc.Snapshots writes them.")
    at_step = max(there) if at_step is None else at_step
    used = {step: path for step, path in sorted(there.items()) if step <= at_step}
    if not used or at_step > max(there):
        raise ValueError(
            f"at_step={at_step!r}: the snapshots in {folder} are of steps {min(there)} to {max(there)}; give a step "
            "from the first to the last of them."
        )
    last = _read(used[max(used)], max(used))
    irregular = _unusable_reason(last)
    if irregular:
        raise ValueError(f"{used[max(used)]} cannot be used: {irregular}.")
    plan = _Plan(last, list(used))
    found = {name: plan.mixed(rule, at_step) for name, rule in wanted.items()}
    weights = _sums(used, last, plan, found)
    return {
        name: Synthesis(weights[name], at_step, made.error, made.rounding, plan.by_place(made))
        for name, made in found.items()
    }


def snapshot_steps(folder: str | os.PathLike[str]) -> list[int]:
    """The steps of which there are snapshots in a folder, the first one first.

    >>> snapshot_steps("no/such/folder")
    []
    """
    return sorted(_steps_in(Path(folder)))


class _Plan:
    """Which averages there are at which steps, what their samples weigh, and how much they are rounded."""

    def __init__(self, last: Mapping[str, Any], steps: list[int]) -> None:
        self.every: int = last["every"]
        rules = {name: rule_from_dict(rule) for name, rule in _rules_of(last).items()}
        self._decays = {name: decays(rule, max(steps), every=self.every) for name, rule in rules.items()}
        # Before the second sample all averages are the same, so one of them will do.
        several = {step: list(rules) if step >= 2 * self.every else list(rules)[:1] for step in steps}
        self.places: list[Place] = [(step, name) for step, some in several.items() for name in some]
        self._roundings = [_rounding(rules[name], step // self.every, **last["digits"]) for step, name in self.places]

    def mixed(self, rule: Rule, at_step: int) -> Mixture:
        return mixture(self, profile(rule, at_step, every=self.every), self._roundings)

    def by_place(self, made: Mixture) -> dict[Place, float]:
        return dict(zip(self.places, made.coefficients, strict=True))

    def __iter__(self) -> Iterator[Tensor]:
        """What the samples weigh at each of the places."""
        return (weights_of(self._decays[name][: step // self.every + 1]) for step, name in self.places)


def _sums(
    used: Mapping[int, Path], last: Mapping[str, Any], plan: _Plan, found: Mapping[str, Mixture]
) -> dict[str, dict[str, Any]]:
    """The mixed weights by name, summed in float64.

    What is summed are distances from one of the averages, so that what never changed comes out bit for bit.
    """
    middle: dict[str, Tensor] = next(iter(last["averages"].values()))["tensors"]
    shares = {name: plan.by_place(made) for name, made in found.items()}
    sums = {name: {key: _wide(tensor) for key, tensor in middle.items()} for name in found}
    for step, path in sorted(used.items(), reverse=True):
        state = last if step == last["step"] else _read(path, step)
        if state["every"] != last["every"] or _rules_of(state) != _rules_of(last):
            raise ValueError(f"{path} comes from a bank with other averages than the later snapshots; remove it.")
        if state["run"] != last["run"]:
            raise ValueError(f"{path} comes from another training than the later snapshots; remove it.")
        for average, each in state["averages"].items():
            if any((step, average) in places for places in shares.values()):
                _add(sums, {name: places[step, average] for name, places in shares.items()}, middle, each, path)
    kinds = {key: torch.promote_types(tensor.dtype, torch.float32) for key, tensor in middle.items()}
    return {
        name: {key: last["rest"][key] if key in last["rest"] else totals[key].to(kinds[key]) for key in last["keys"]}
        for name, totals in sums.items()
    }


def _add(
    sums: Mapping[str, Mapping[str, Tensor]],
    shares: Mapping[str, float],
    middle: Mapping[str, Tensor],
    average: Mapping[str, Any],
    path: Path,
) -> None:
    tensors: dict[str, Tensor] = average["tensors"]
    if {key: each.shape for key, each in tensors.items()} != {key: each.shape for key, each in middle.items()}:
        raise ValueError(f"{path} holds other tensors than the later snapshots: it is of another model; remove it.")
    for key, tensor in tensors.items():
        apart = _wide(tensor) - _wide(middle[key])
        for name, share in shares.items():
            sums[name][key].add_(apart, alpha=share)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float64), copy=True)


# What a snapshot says of itself --------------------------------------------------------------------------------------


def _unusable_reason(state: Mapping[str, Any]) -> str:
    """Why the samples of a snapshot do not weigh what its rules say; empty where they do.

    Whatever makes it so stays in the counts for the rest of the training, so the last snapshot speaks for all.
    """
    step, every = state["step"], state["every"]
    if state["skipped"]:
        return f"the bank had skipped {state['skipped']} samples for NaN or inf by step {step}"
    for name, each in state["averages"].items():
        if each["origin"]:
            return f"the average {name!r} was reset at step {each['origin']}"
        if each["samples"] != step // every:
            return f"the bank was flushed between samples before step {step}"
    return ""


def _rounding(rule: Rule, samples: int, *, kept: float, stored: float) -> float:
    """By which share of its length an average is off as it is stored.

    Each update rounds it, and forgets as much of earlier roundings as of earlier samples: in the end these add up to
    those of half a window.
    """
    window = samples / (rule.gamma + 1.0) if isinstance(rule, PowerEMA) else 1.0
    in_updates = 0.3 * kept * math.sqrt(max(1.0, window / 2.0))  # 12^-½ of an epsilon is the mean error of a rounding
    return math.hypot(in_updates, 0.3 * stored) if stored > kept else in_updates


def _precision(tensors: Iterable[Tensor]) -> float:
    """The epsilon of the kind with the fewest digits."""
    return max((torch.finfo(each.dtype).eps for each in tensors), default=0.0)


def _rules_of(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: each["rule"] for name, each in state["averages"].items()}


def _read(path: Path, step: int) -> dict[str, Any]:
    state = read_state(path, kind=_KIND)
    if state["step"] != step:
        raise ValueError(f"{path} is the snapshot of step {state['step']}: name it so, or remove it.")
    return state


def _steps_in(folder: Path) -> dict[int, Path]:
    found = ((_FILE.fullmatch(path.name), path) for path in folder.glob("step-*.pt"))
    return {int(match.group(1)): path for match, path in found if match is not None}


def _path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}.pt"
