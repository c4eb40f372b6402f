"""Choose afterwards: snapshots of power-function averages during training, and from them any average at any step.

After Karras et al. 2023 (EDM2), section 3.2, but for every rule of this package, and with the exact weights that
samples have in a bank. An average is a weighted mean of the samples (and of the initial weights), and so is a mixture
of averages. The mixture nearest to another average is a least-squares problem in the weights of the samples.
"""

import math
import os
import re
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from emabank._distributed import ProcessGroups
from emabank._schedule import AverageSchedule
from emabank.bank import EMABank
from emabank.checkpoint import read_state, write_state
from emabank.rules import (
    DecayControl,
    DecayShape,
    PowerEMA,
    Rule,
    check_choice,
    check_int,
    decay_merge_weights,
    rule_from_dict,
)

__all__ = ["LikeDecay", "Snapshots", "Synthesis", "snapshot_steps", "synthesize", "synthesize_many"]

# Sample profiles: the weight of every sample in an average ------------------------------------------------------------

_EXACT = 4096  # up to this many samples are fitted one by one; of more, distant ones are binned
_FINENESS = 512  # a bin spans one part in this many of its distance from the end
_MIN_ROUNDING = 1e-10  # so that nearly equal averages can still be solved for
_FITTED = 24  # from so many snapshots, of those there are, the movement of a run is estimated
_ELEMENTS = 4096  # and from about so many elements of each


@dataclass(frozen=True)
class LikeDecay:
    """A target for `synthesize`: the weights after a learning-rate decay to 0, if the rate was constant until now.

    A decay that scales the updates of the last `window` steps by factors w moves the weights by Σ wₖ (θₖ - θₖ₋₁), so
    sample k has the weight wₖ - wₖ₊₁ in the decayed model (Tian et al. 2025, "WSM", arXiv 2507.17634). It assumes that
    the gradients would have been the same.

    Args:
        shape: "linear", "cosine" or "sqrt" (1 - √x).
        window: the steps of the decay.
        control: "reversed" or "scrambled" gives the same weights to the samples in another order. If the control is as
            good as the merge, any mean of these samples would do.
    """

    shape: DecayShape
    window: int
    control: DecayControl | None = None

    def __post_init__(self) -> None:
        check_int("window", self.window, minimum=1)
        decay_merge_weights([0, self.window], self.shape, control=self.control)  # checks the other two


Target = Rule | LikeDecay | float


def profile(target: Target, step: int, *, every: int) -> Tensor:
    """The weights of the initial weights and of each sample at a step, in float64; they sum to 1.

    >>> from emabank import EMA, Uniform
    >>> profile(Uniform(), 3, every=1)
    tensor([0.0000, 0.3333, 0.3333, 0.3333], dtype=torch.float64)
    >>> profile(EMA(per_update=0.5, warmup=None), 5, every=2)
    tensor([0.2500, 0.2500, 0.5000], dtype=torch.float64)
    >>> profile(LikeDecay("linear", window=2), 4, every=1)
    tensor([0.0000, 0.0000, 0.0000, 0.5000, 0.5000], dtype=torch.float64)
    """
    if not isinstance(target, LikeDecay):
        return _weights_of(_decays(target, step, every))
    steps = list(range(0, step + 1, every))
    merged = [at for at in steps if at >= steps[-1] - target.window]
    weights = decay_merge_weights(merged, target.shape, control=target.control)
    return torch.tensor([0.0] * (len(steps) - len(merged)) + weights, dtype=torch.float64)


def _decays(rule: Rule | float, step: int, every: int) -> Tensor:
    """The decay of each sample of a bank up to a step, after a 0 for the initial weights."""
    schedule = AverageSchedule([rule], every)
    weights = [schedule.sample_weights(at)[0] for at in range(every, step + 1, every)]
    return 1.0 - torch.tensor([1.0, *weights], dtype=torch.float64)


def _weights_of(decays: Tensor) -> Tensor:
    """The weight of each sample: one minus its own decay, times the decays of all later samples."""
    first = int((decays == 0).nonzero().max())  # everything before it is forgotten
    later = decays[first + 1 :].log().flip(0).cumsum(0).flip(0).exp()
    remaining = torch.cat([later, later.new_ones(1)])
    weights = torch.zeros_like(decays)
    weights[first:] = (1.0 - decays[first:]) * remaining
    return weights


class Movement(NamedTuple):
    """How the weights of a run move: variances, in units of the mean square of the weights.

    Attributes:
        noise: of each sample about the path of the run.
        walk: of the path from its first to its last sample. It moves as far while the number of samples doubles as it
            did before: variance 1/k at sample k.
    """

    noise: float
    walk: float


UNKNOWN = Movement(noise=0.1, walk=1.0)


class Mixture(NamedTuple):
    """Coefficients that mix averages into another one, and how close they get.

    Attributes:
        coefficients: their sum is 1, so that a constant stays as it is.
        error: distance of the sample weights from the target's, relative to the target's norm, and rounding.
        rounding: relative error of the mixed weights that comes from rounding.
    """

    coefficients: list[float]
    error: float
    rounding: float


def mixture(
    profile_of: Callable[[int], Tensor],
    lengths: Sequence[int],
    target: Tensor,
    roundings: Sequence[float],
    movement: Movement = UNKNOWN,
) -> Mixture:
    """The mixture of profiles that is expected to be nearest to a target.

    If the sample weights are off by e (with sum 0), the average is off by Σ eₖ θₖ. For a run that moves as `movement`
    says, and stored averages with roundings r, the expected square of that is, with E the cumulative sums of e and c
    the coefficients,

        noise Σ eₖ² + walk Σ Eₖ² / (k + 1) / Σ (1/k) + Σ (rᵢ cᵢ)²

    Noise alone, which is Karras et al.'s choice, leaves weight on the earliest samples, far from where a run ends.

    Args:
        profile_of: the profile of each average, by its number. It may be shorter than the target: later samples weigh
            nothing in it. Called twice, because those of a long run may be too large to keep all of them.
        lengths: of the profiles.
        target: the profile of the average to synthesize.
        roundings: the relative errors of the stored averages.
        movement: of the run.
    """
    for number, length in enumerate(lengths):
        if length == len(target) and torch.equal(profile_of(number), target):  # it is stored as it is
            coefficients = [float(other == number) for other in range(len(lengths))]
            return Mixture(coefficients, roundings[number] / math.sqrt(movement.noise), roundings[number])
    bins = _Bins(len(target), lengths)

    def rows(weights: Tensor) -> Tensor:
        noise, walk = bins.rows(weights)
        return torch.cat([math.sqrt(movement.noise) * noise, math.sqrt(movement.walk) * walk])

    rounded = torch.tensor(roundings, dtype=torch.float64)
    columns = torch.stack([rows(profile_of(number)) for number in range(len(lengths))], dim=1)
    coefficients = _solve(columns, rows(target), rounded)
    difference = -target.double()
    for number, coefficient in enumerate(coefficients):
        difference[: lengths[number]] += coefficient * profile_of(number)
    rounding = float(torch.linalg.vector_norm(rounded * torch.tensor(coefficients, dtype=torch.float64)))
    distance = math.hypot(float(torch.linalg.vector_norm(difference)), rounding / math.sqrt(movement.noise))
    return Mixture(coefficients, distance / float(torch.linalg.vector_norm(target.double())), rounding)


def estimate_movement(
    profile_of: Callable[[int], Tensor], lengths: Sequence[int], roundings: Sequence[float], elements: Tensor
) -> Movement:
    """The movement under which stored averages are the most likely.

    Their differences are taken to be normal with the covariance C = noise N + walk W + R, where N and W follow from
    the profiles and R from rounding. Multiplying each variance by the root of tr(C⁻¹SC⁻¹N) / tr(C⁻¹N), where S is the
    observed covariance, raises the likelihood in every round (Zhou et al. 2019, "MM algorithms for variance components
    models").

    Args:
        profile_of, lengths, roundings: of the averages, as for `mixture`; the last is the longest.
        elements: some elements of each average, [averages, elements], in units of the size of the weights.
    """
    differences = elements[:-1] - elements[-1]
    total = float(differences.square().mean()) if differences.numel() else 0.0
    if total < max(roundings) ** 2:
        return UNKNOWN
    bins = _Bins(lengths[-1], lengths)
    noise, walk = zip(*(bins.rows(profile_of(number)) for number in range(len(lengths))), strict=True)
    # Square roots of all covariances but C, whose products with their transposes lose no digits.
    parts = [_root(torch.stack(rows[:-1]) - rows[-1]) for rows in (noise, walk)]
    observed = _root(differences) / math.sqrt(differences.shape[1])
    variances = torch.tensor(roundings, dtype=torch.float64).square() + 1e-12 * total  # solvable if averages coincide
    rounded = torch.diag(variances[:-1]) + variances[-1]
    estimates = [total * UNKNOWN.noise, total * UNKNOWN.walk]
    for _ in range(60):
        covariance = sum((value * part @ part.T for value, part in zip(estimates, parts, strict=True)), rounded)
        factor = torch.linalg.cholesky(covariance)
        white = torch.linalg.solve_triangular(factor, observed, upper=False)
        for number, part in enumerate(parts):
            whitened = torch.linalg.solve_triangular(factor, part, upper=False)
            estimates[number] *= math.sqrt(float((whitened.T @ white).square().sum() / whitened.square().sum()))
    # A path that looks smooth in the snapshots is not known to be smooth between them.
    return Movement(max(estimates[0], 0.01 * estimates[1]), estimates[1])


def _root(rows: Tensor) -> Tensor:
    """A small matrix R with R Rᵀ = rows rowsᵀ."""
    return torch.linalg.qr(rows.T, mode="r").R.T


class _Bins:
    """Profiles of a run as rows of the least-squares problem; neighbouring samples of a long run are binned."""

    def __init__(self, length: int, lengths: Sequence[int]) -> None:
        sizes = _bin_sizes(length, lengths)
        self._index = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        self._widths = sizes.sqrt()
        steps = (sizes[:-1] + sizes[1:]) / 2 / sizes.cumsum(0)[:-1]  # variance of the walk from one bin to the next
        self._steps = (steps / max(1.0, float(steps.sum()))).sqrt()

    def rows(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """What independent noise, and what a walk, makes of sample weights: their squares are variances."""
        sums = torch.zeros(len(self._widths), dtype=torch.float64)
        sums.index_add_(0, self._index[: len(weights)], weights.double())
        return sums / self._widths, sums.cumsum(0)[:-1] * self._steps


def _solve(columns: Tensor, goal: Tensor, noise: Tensor) -> list[float]:
    """Least squares with coefficients that sum to 1: the last one is eliminated."""
    count = columns.shape[1]
    if count == 1:
        return [1.0]
    columns = torch.cat([columns, torch.diag(noise.clamp_min(_MIN_ROUNDING))])
    goal = torch.cat([goal, goal.new_zeros(count)])
    last = columns[:, -1:]
    # The last digits of the default driver differ from call to call.
    solution: Tensor = torch.linalg.lstsq(columns[:, :-1] - last, goal.unsqueeze(1) - last, driver="gels").solution
    others: list[float] = solution[:, 0].tolist()
    return [*others, 1.0 - math.fsum(others)]


def _bin_sizes(length: int, lengths: Sequence[int]) -> Tensor:
    """The sizes of the bins of neighbouring samples that are fitted together.

    Near the end, where windows are short, every sample is a bin. No bin contains the end of a profile.
    """
    edges = {0, length, *lengths}
    if length <= _EXACT:
        edges.update(range(length))
    edge = length
    while edge > 0:
        edge -= max(1, (length - edge) // _FINENESS)
        edges.add(max(0, edge))
    return torch.tensor(sorted(edges)).diff()


SnapshotKey = tuple[int, str]  # the step and the name of the average

_FILE = re.compile(r"step-(\d{9,})\.pt")
_KIND = "posthoc"

# Writing snapshots ----------------------------------------------------------------------------------------------------


class Snapshots:
    """Writes the power-function averages of a bank to a folder at regular steps, for `synthesize`.

    The bank needs two of them with different widths; `PowerEMA(0.05)` and `PowerEMA(0.1)` are a good pair. Build it
    when training starts, so that it also saves the initial weights, or after loading the bank to resume. Snapshots
    later than the bank's step, left by a run that is now resumed from an earlier checkpoint, are deleted. Call
    `update()` after each `bank.update()`, or less often. If several processes train one model, each has a `Snapshots`;
    the first one writes.

    Args:
        bank: the bank.
        folder: where to write; a folder for this run alone.
        every_steps: optimizer steps between snapshots.
        dtype: the precision of the files; None keeps that of the bank. A snapshot of two averages takes 8 bytes per
            parameter, with torch.float16 or torch.bfloat16 4 bytes.
        run: the id of the run, stored in every snapshot, so that those of another run are never mixed in. By default it
            is random; a resumed run finds it in the folder.

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
        bank: EMABank,
        folder: str | os.PathLike[str],
        *,
        every_steps: int,
        dtype: torch.dtype | None = None,
        run: str | None = None,
    ) -> None:
        every_steps = check_int("every_steps", every_steps, minimum=1)
        check_choice("dtype", dtype, (None, torch.float32, torch.float16, torch.bfloat16))
        self._names = [name for name in bank.names if isinstance(bank.rule(name), PowerEMA)]
        if len({bank.rule(name) for name in self._names}) < 2:
            raise ValueError(
                "bank must have two power-function averages of different widths, as in EMABank(model, [..., "
                f"PowerEMA(0.05), PowerEMA(0.1)]); got {', '.join(bank.names)}."
            )
        self._bank, self._folder, self._every_steps, self._dtype = bank, Path(folder), every_steps, dtype
        groups = ProcessGroups.of(bank.model)
        self._writes = groups is None or groups.is_first
        self._gathers = groups is not None and ProcessGroups.of_sharded(bank.model) is not None
        self._warned = False
        self._run = self._prepare_folder(run) if self._writes else ""
        self._periods = bank.num_steps // every_steps
        # The bank's own step too: a run may have been killed between a checkpoint and the snapshot of that step.
        if bank.num_steps % every_steps == 0 and (bank.num_updates or not bank.num_steps):
            self.save()

    def update(self) -> bool:
        """Write a snapshot if one is due; True if so."""
        if self._bank.num_steps // self._every_steps == self._periods or not self._bank.num_updates:
            return False
        self.save()
        return True

    def save(self) -> None:
        """Write a snapshot now, for example at the end of training; it replaces one of the same step."""
        bank = self._bank
        if bank.num_steps and not bank.num_updates:
            raise RuntimeError(
                f"No average has begun at step {bank.num_steps}, because the bank samples every {bank.every} steps: "
                "save a snapshot after the first sample."
            )
        if self._writes or self._gathers:  # all ranks gather shards together
            state = self._state()
            if self._writes:
                write_state(self._folder / f"step-{bank.num_steps:09d}.pt", state, kind=_KIND)
        self._periods = bank.num_steps // self._every_steps

    def _state(self) -> dict[str, Any]:
        bank = self._bank
        averaged = bank._averaged_keys()  # pyright: ignore[reportPrivateUsage]
        averages: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        keys: list[str] = []
        epsilons = {"kept": 0.0, "stored": 0.0}
        for name in self._names:
            weights = bank.weights(name, batchnorm="averaged", full=True)
            kept = {key: value for key, value in weights.items() if key in averaged}
            stored = {key: self._narrowed(value) for key, value in kept.items()}
            epsilons = {"kept": _epsilon(kept.values()), "stored": _epsilon(stored.values())}
            averages[name] = {**bank._average_state(name), "tensors": stored}  # pyright: ignore[reportPrivateUsage]
            rest = {key: value for key, value in weights.items() if key not in averaged}
            keys = list(weights)
        state = {
            "run": self._run,
            "step": bank.num_steps,
            "every": bank.every,
            "skipped": bank.num_skipped,
            "digits": epsilons,
            "averages": averages,
            "rest": rest,
            "keys": keys,
        }
        reason = _unusable_reason(state)
        if reason and not self._warned:
            self._warned = True
            warnings.warn(
                f"synthesize() cannot use the snapshot of step {bank.num_steps} and later ones: {reason}.", stacklevel=4
            )
        return state

    def _narrowed(self, tensor: Tensor) -> Tensor:
        if self._dtype is None or not tensor.is_floating_point() or tensor.dtype.itemsize <= self._dtype.itemsize:
            return tensor
        narrow = tensor.to(self._dtype)
        return narrow if bool(narrow.isfinite().all()) else tensor  # it overflows half precision

    def _prepare_folder(self, run: str | None) -> str:
        """Delete snapshots later than the bank's step, check that the others are of this run, and return its id."""
        self._folder.mkdir(parents=True, exist_ok=True)
        paths, bank = _snapshot_paths(self._folder), self._bank
        later = [step for step in paths if step > bank.num_steps]
        if later and bank.num_steps == 0:
            raise ValueError(
                f"{self._folder} has snapshots up to step {max(later)}, but the bank is at step 0: to resume that run, "
                "build Snapshots after bank.load_state_dict(); for a new run, use another folder."
            )
        if not paths or bank.num_steps == 0:
            return secrets.token_hex(8) if run is None else run
        newest = max([step for step in paths if step not in later] or later)
        path, state = paths[newest], _read(paths[newest], newest)
        rules = {name: bank._average_state(name)["rule"] for name in self._names}  # pyright: ignore[reportPrivateUsage]
        if state["every"] != bank.every or _rules(state) != rules:
            raise ValueError(
                f"{path} has {', '.join(state['averages'])} of a bank with every={state['every']}, but this bank has "
                f"{', '.join(self._names)} with every={bank.every}: use another folder."
            )
        if run not in (None, state["run"]):
            raise ValueError(f"run must be {state['run']!r}, that of {path}; got {run!r}: use another folder.")
        for step in later:  # only now: they may be of another run
            paths[step].unlink()
        return state["run"]


# Synthesis ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Synthesis:
    """An average that was synthesized from snapshots, and how good it is.

    Attributes:
        weights: a state dict of the model, like that of `bank.weights(name)`.
        step: the step of the average.
        error: distance of the weights of its samples from those in the true average, relative to their norm. Near 0 it
            is that average; above 0.5 it is another one.
        rounding: relative error of the weights that comes from the precision of the snapshots.
        coefficients: the coefficient of every snapshot and average; their sum is 1.
    """

    weights: dict[str, Any]
    step: int
    error: float
    rounding: float
    coefficients: dict[SnapshotKey, float]


def synthesize(folder: str | os.PathLike[str], target: Target, *, at_step: int | None = None) -> Synthesis:
    """Synthesize from snapshots the average that a bank would have had at a step.

    Only snapshots up to that step are used. What is not averaged (counters, buffers, batch-norm statistics that the
    bank copies) comes from the last of them. Look at `error` before you use the result; docs/posthoc.md says how many
    snapshots are enough.

    Args:
        folder: where `Snapshots` wrote.
        target: the rule of the average; a number is the decay of an `EMA`. `Uniform(start=at_step - window)` is the
            mean over a window, `LikeDecay("linear", window)` the model after a learning-rate decay.
        at_step: the step; None means that of the last snapshot.

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
    ...     synthesis = synthesize(folder, EMA(0.8), at_step=9)
    >>> torch.allclose(synthesis.weights["weight"], bank.weights(0.8)["weight"], atol=1e-4), synthesis.error < 0.01
    (True, True)
    """
    return synthesize_many(folder, {"only": target}, at_step=at_step)["only"]


def synthesize_many(
    folder: str | os.PathLike[str], targets: Mapping[str, Target], *, at_step: int | None = None
) -> dict[str, Synthesis]:
    """Synthesize several averages, by name, at one step. Snapshots are read one at a time, and at most 24 twice.

    >>> from emabank import EMA
    >>> synthesize_many("no/such/folder", {"slow": EMA(half_life=100)})
    Traceback (most recent call last):
    FileNotFoundError: There are no snapshots in no/such/folder; emabank.posthoc.Snapshots writes them.
    """
    paths = _snapshot_paths(Path(folder))
    if not paths:
        raise FileNotFoundError(f"There are no snapshots in {folder}; emabank.posthoc.Snapshots writes them.")
    at_step = max(paths) if at_step is None else check_int("at_step", at_step)
    if not min(paths) <= at_step <= max(paths):
        raise ValueError(
            f"at_step must be from {min(paths)} to {max(paths)}, the steps of the snapshots in {folder}; got {at_step}."
        )
    paths = {step: path for step, path in paths.items() if step <= at_step}
    last = _read(paths[max(paths)], max(paths))
    reason = _unusable_reason(last)
    if reason:
        raise ValueError(f"{paths[max(paths)]} cannot be used: {reason}.")
    with torch.device("cpu"):  # whatever torch's default device is
        keys, mixtures = _mixtures(paths, last, targets, at_step)
    coefficients = {name: dict(zip(keys, mixed.coefficients, strict=True)) for name, mixed in mixtures.items()}
    weights = _mix(paths, last, coefficients)
    return {
        name: Synthesis(weights[name], at_step, mixed.error, mixed.rounding, coefficients[name])
        for name, mixed in mixtures.items()
    }


def snapshot_steps(folder: str | os.PathLike[str]) -> list[int]:
    """The steps of the snapshots in a folder, in order.

    >>> snapshot_steps("no/such/folder")
    []
    """
    return sorted(_snapshot_paths(Path(folder)))


def _mixtures(
    paths: Mapping[int, Path], last: Mapping[str, Any], targets: Mapping[str, Target], at_step: int
) -> tuple[list[SnapshotKey], dict[str, Mixture]]:
    """How to mix the averages of the snapshots, whose keys come first, into each target."""
    steps, every = sorted(paths), last["every"]
    rules = {name: rule_from_dict(rule) for name, rule in _rules(last).items()}
    decays = {name: _decays(rule, max(steps), every) for name, rule in rules.items()}
    # Before the second sample all averages are equal, so one is enough.
    keys = [(step, name) for step in steps for name in (rules if step >= 2 * every else list(rules)[:1])]
    lengths = [step // every + 1 for step, _ in keys]
    roundings = [_rounding(rules[name], step // every, **last["digits"]) for step, name in keys]

    def profile_of(number: int) -> Tensor:
        return _weights_of(decays[keys[number][1]][: lengths[number]])

    fitted = set(steps[:: -max(1, math.ceil(len(steps) / _FITTED))])
    some = [number for number, (step, _) in enumerate(keys) if step in fitted]
    movement = estimate_movement(
        lambda number: profile_of(some[number]),
        [lengths[number] for number in some],
        [roundings[number] for number in some],
        _elements({step: paths[step] for step in fitted}, last, [keys[number] for number in some]),
    )
    return keys, {
        name: mixture(profile_of, lengths, profile(target, at_step, every=every), roundings, movement)
        for name, target in targets.items()
    }


def _elements(paths: Mapping[int, Path], last: Mapping[str, Any], keys: Sequence[SnapshotKey]) -> Tensor:
    """Some elements of each average, in units of the size of their tensor."""
    base: dict[str, Tensor] = next(iter(last["averages"].values()))["tensors"]
    apart = math.ceil(sum(tensor.numel() for tensor in base.values()) / _ELEMENTS) or 1

    def some(tensor: Tensor) -> Tensor:
        elements = _wide(tensor.flatten()[::apart])
        return torch.view_as_real(elements).flatten() if elements.is_complex() else elements

    sizes = {key: float(some(tensor).square().mean().sqrt()) for key, tensor in base.items() if tensor.numel()}
    rows = {
        (step, name): torch.cat([some(saved["tensors"][key]) / (size or 1.0) for key, size in sizes.items()])
        for step, state in _states(paths, last)
        for name, saved in state["averages"].items()
    }
    return torch.stack([rows[key] for key in keys])


def _mix(
    paths: Mapping[int, Path], last: Mapping[str, Any], coefficients: Mapping[str, Mapping[SnapshotKey, float]]
) -> dict[str, dict[str, Any]]:
    """The mixed state dicts by name.

    Differences from one of the averages are summed in float64, so that what never changed comes out bit for bit.
    """
    base: dict[str, Tensor] = next(iter(last["averages"].values()))["tensors"]
    totals = {name: {key: _wide(tensor) for key, tensor in base.items()} for name in coefficients}
    for step, state in _states(paths, last):
        for average, saved in state["averages"].items():
            for key, tensor in saved["tensors"].items():
                difference = _wide(tensor) - _wide(base[key])
                for name, by_snapshot in coefficients.items():
                    totals[name][key].add_(difference, alpha=by_snapshot.get((step, average), 0.0))
    state_dicts: dict[str, dict[str, Any]] = {}
    for name, total in totals.items():
        averaged = {key: total[key].to(torch.promote_types(base[key].dtype, torch.float32)) for key in base}
        state_dicts[name] = {key: averaged[key] if key in averaged else last["rest"][key] for key in last["keys"]}
    return state_dicts


def _states(paths: Mapping[int, Path], last: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The snapshots from the latest on, one at a time, each checked to be of the same run."""
    for step, path in sorted(paths.items(), reverse=True):
        state = dict(last) if step == last["step"] else _read(path, step)
        _check_same_run(path, state, last)
        yield step, state


def _check_same_run(path: Path, state: Mapping[str, Any], last: Mapping[str, Any]) -> None:
    if state["every"] != last["every"] or _rules(state) != _rules(last):
        raise ValueError(f"{path} is of a bank with other averages than the later snapshots: remove it.")
    if state["run"] != last["run"]:
        raise ValueError(f"{path} is of another run than the later snapshots: remove it.")
    for name, average in state["averages"].items():
        if _shapes(average) != _shapes(last["averages"][name]):
            raise ValueError(f"{path} has other tensors than the later snapshots, those of another model: remove it.")


def _shapes(average: Mapping[str, Any]) -> dict[str, torch.Size]:
    return {key: tensor.shape for key, tensor in average["tensors"].items()}


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float64), copy=True)


# Snapshot files -------------------------------------------------------------------------------------------------------


def _unusable_reason(state: Mapping[str, Any]) -> str:
    """Why the samples of a snapshot do not have the weights that its rules say; empty if they do.

    These counts never go back to 0 in a run, so the last snapshot represents all of them.
    """
    step, every = state["step"], state["every"]
    if state["skipped"]:
        return f"the bank had skipped {state['skipped']} samples for NaN or inf by step {step}"
    for name, average in state["averages"].items():
        if average["origin"]:
            return f"the average {name!r} was reset at step {average['origin']}"
        if average["samples"] != step // every:
            return f"the bank was flushed between samples before step {step}"
    return ""


def _rounding(rule: Rule, samples: int, *, kept: float, stored: float) -> float:
    """The relative error of a stored average; `kept` and `stored` are the epsilons of the bank and of the file.

    Every update rounds, and forgets earlier roundings as it forgets earlier samples: the sum is that of half a window.
    """
    window = samples / (rule.gamma + 1.0) if isinstance(rule, PowerEMA) else 1.0
    in_updates = 0.3 * kept * math.sqrt(max(1.0, window / 2.0))  # 12^-½ of an epsilon is the mean error of a rounding
    return math.hypot(in_updates, 0.3 * stored) if stored > kept else in_updates


def _epsilon(tensors: Iterable[Tensor]) -> float:
    """The largest epsilon of the dtypes."""
    return max((torch.finfo(tensor.dtype).eps for tensor in tensors), default=0.0)


def _rules(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: average["rule"] for name, average in state["averages"].items()}


def _read(path: Path, step: int) -> dict[str, Any]:
    state = read_state(path, kind=_KIND)
    if state["step"] != step:
        raise ValueError(f"{path} is the snapshot of step {state['step']}: rename or remove it.")
    return state


def _snapshot_paths(folder: Path) -> dict[int, Path]:
    matches = ((_FILE.fullmatch(path.name), path) for path in folder.glob("step-*.pt"))
    return {int(match.group(1)): path for match, path in matches if match is not None}
