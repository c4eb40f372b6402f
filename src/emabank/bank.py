"""EMABank: several averages of a model's weights, kept while it trains.

It counts steps, asks the schedule for the weight of a sample in each average, lets the storage update all averages in
one pass, and hands averages out. It never changes the training it watches.
"""

import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from emabank._distributed import fsdp_modules, full_tensor, is_sharded, local_shard, reshard, to_local
from emabank._model import (
    AveragedTensors,
    Choice,
    check_materialized,
    check_shapes,
    nonfinite,
    outside_inference_mode,
    rank_means,
    tensor_refs,
    tensor_shapes,
    unwrap,
)
from emabank._schedule import FORMAT, AverageSchedule
from emabank._swap import (
    SWAPPED,
    Copies,
    Swap,
    copy_module,
    functional_params,
    holding,
    state_dict_with,
    swap_in,
    swapped,
)
from emabank.preserved import eval_mode, preserved_rng
from emabank.rules import LIVE, Rule, check_choice

Statistics = Literal["averaged", "recomputed"]
Result = TypeVar("Result")


class EMABank:
    """Several averages of a model's weights, kept while it trains.

    Under DistributedDataParallel and FSDP2 every process has a bank and updates it. Averages of a sharded model are
    sharded like its parameters. Updates need no communication, except with `on_nonfinite="skip"`, where ranks
    all-reduce one flag so that all of them skip together. Batch-norm statistics of a DistributedDataParallel model
    differ between ranks; their mean over the ranks is averaged.

    Args:
        model: The model that trains.
        averages: Decays per step (a float is `EMA(decay)`) and rules, in a sequence or a mapping from names. None,
            with `steps`: five averages with the paper's half-lives, 0.44, 0.88, 1.8, 3.5 and 7.1 % of the run.
        steps: The length of the run in optimizer steps.
        every: The optimizer steps between two samples. It decides what averaging costs, not how far an average looks
            back. None is 1; with `steps` the largest of 1, 2, 4, 8 and 16 that samples the fastest average 16 times
            in its half-life.
        parameters: Which parameters are averaged: "all", "trainable", or a function of name and parameter. The others
            are read from the live model.
        buffers: "average" averages batch-norm statistics (`running_mean`, `running_var`), "copy" reads them from the
            live model. All other buffers are always read from there.
        dtype: The dtype of the averages, float32 or float64; float64 where the model has it.
        device: The device of the averages; None keeps each on the device of its live tensor.
        on_nonfinite: What to do if the weights hold NaN or inf: "raise" before any average moves, "skip" the update,
            or "ignore". The first two read every weight before every update. On an accelerator "raise" does not make
            the host wait: the error comes with the next update or read and names the step, which has moved no average;
            "skip" waits. A non-finite average is never handed out or saved.

    Wherever an average is read, `batchnorm=None` means recomputed statistics (`recalibrate_batchnorm`) while they are
    current, and averaged ones otherwise; "averaged" and "recomputed" insist on one.

    >>> from emabank import Uniform
    >>> model = nn.Linear(2, 1)
    >>> bank = EMABank(model, [0.99, Uniform()], every=1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> for _ in range(3):
    ...     model(torch.ones(4, 2)).sum().backward()
    ...     optimizer.step(); optimizer.zero_grad()
    ...     _ = bank.update()
    >>> with bank.applied("uniform"):
    ...     _ = model(torch.ones(1, 2))
    >>> bank.names, bank.num_updates
    (('ema-0.99', 'uniform'), 3)
    """

    _pending_check: Callable[[], None] | None = None  # of a sample that an accelerator may still be busy with

    def __init__(
        self,
        model: nn.Module,
        averages: Sequence[float | Rule] | Mapping[str, float | Rule] | None = None,
        *,
        steps: int | None = None,
        every: int | None = None,
        parameters: Choice = "all",
        buffers: Literal["average", "copy"] = "average",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        on_nonfinite: Literal["raise", "skip", "ignore"] = "raise",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ValueError(f"model must be a torch.nn.Module; got a {type(model).__name__}.")
        check_choice("buffers", buffers, ("average", "copy"))
        check_choice("on_nonfinite", on_nonfinite, ("raise", "skip", "ignore"))
        check_choice("dtype", dtype, (torch.float32, torch.float64))
        if (swap := swap_in(model)) is not None:
            raise RuntimeError(
                f"The model holds the average {swap.name!r} of another bank now, not its live weights: build this bank "
                f"after the block of applied({swap.name!r})."
            )
        reshard(fsdp_modules(model))
        check_materialized(model)
        schedule = AverageSchedule(averages, every, steps)
        schedule.warn_if_undersampled()
        tensors = AveragedTensors(
            model,
            len(schedule.names),
            parameters=parameters,
            statistics=buffers == "average",
            dtype=dtype,
            device=None if device is None else torch.device(device),
        )
        self._model, self._schedule, self._tensors = model, schedule, tensors
        self._every = schedule.every
        self._on_nonfinite = on_nonfinite
        self._steps = self._updates = self._skipped = 0
        self._handle: RemovableHandle | None = None
        self._invalidate_cache()

    # Counting and averaging -------------------------------------------------------------------------------------------

    def update(self) -> bool:
        """Count one optimizer step, and average at every `every`-th one. True when it averaged.

        >>> bank = EMABank(nn.Linear(2, 1), [0.99], every=2)
        >>> [bank.update() for _ in range(4)]
        [False, True, False, True]
        """
        if SWAPPED or self._handle is not None:
            self._check_can_update()
        return self._count_step()

    def attach(self, optimizer: Optimizer) -> RemovableHandle:
        """Count the steps of `optimizer` from now on, instead of calls to `update`, until `remove()` on the handle.

        Steps that gradient accumulation or a loss scaler skips are not counted.

        >>> model = nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> bank = EMABank(model, [0.9], every=1)
        >>> handle = bank.attach(optimizer)
        >>> optimizer.step(); bank.num_steps
        1
        >>> handle.remove()
        """
        self._check_not_applied("attach()")
        if not hasattr(optimizer, "register_step_post_hook"):
            raise ValueError(f"optimizer must be a torch optimizer; got a {type(optimizer).__name__}.")
        if self._is_attached():
            raise RuntimeError(
                "This bank is attached to an optimizer already, and would count twice: remove() that handle first."
            )
        self._handle = optimizer.register_step_post_hook(self._after_optimizer_step)
        return self._handle

    def flush(self) -> bool:
        """Sample the live weights now, without shifting the period. False if there was no step since the last sample.

        The decay is scaled to the elapsed time: α^Δ, where Δ is the number of steps since the last sample.

        >>> bank = EMABank(nn.Linear(2, 1), [0.999], every=16)
        >>> bank.update(), bank.flush(), bank.flush()
        (False, True, False)
        """
        self._check_not_applied("flush()")
        return self._schedule.is_new(self._steps) and self._sample()

    def reset(self, name: str | float | None = None) -> None:
        """Restart an average (or all of them) from the live weights, as if the bank were built now.

        >>> bank = EMABank(nn.Linear(2, 1), [0.9], every=1)
        >>> _ = bank.update()
        >>> bank.reset(0.9)
        >>> bank.state_dict()["averages"]["ema-0.9"]["samples"]
        0
        """
        self._check_not_applied("reset()")
        self._finish_check()
        restarted = self.names if name is None else (self._schedule.average(name),)
        self._tensors.refresh(sync_statistics=True)
        if self._on_nonfinite != "ignore" and (bad := self._tensors.storage.nonfinite()):
            names = ", ".join(repr(self._tensors.names[index]) for index in bad[:5])
            raise FloatingPointError(f"The live weights hold NaN or inf in {names}: no average can restart from them.")
        for average in restarted:
            self._tensors.write(self.names.index(average))
            self._schedule.reset(average, self._steps)
            self._recomputed.pop(average, None)
        self._cached_averages = {}

    def _count_step(self) -> bool:
        self._steps = step = self._steps + 1
        if step % self._every and step != 1:
            return False
        if step == 1:
            self._warn_if_reloaded()
        return step % self._every == 0 and self._sample()

    def _sample(self) -> bool:
        if self._pending_check is not None:
            self._finish_check()
        steps = self._schedule.steps
        if steps is not None and self._schedule.has_shares and steps < self._steps <= steps + self._every:
            warnings.warn(
                f"This is step {self._steps} of a bank built with steps={steps}: pass the number of optimizer steps of "
                "the whole run, of which the half-lives are shares.",
                stacklevel=4,
            )
        self._tensors.refresh(sync_statistics=True)
        storage, finite = self._tensors.storage, None
        if self._on_nonfinite == "raise" and storage.is_on_accelerator:
            finite = self._start_check()
        elif self._on_nonfinite != "ignore":
            bad = storage.nonfinite()
            if self._on_nonfinite == "skip" and self._tensors.any_rank(bool(bad)):
                self._skipped += 1
                return False
            if bad:
                raise self._nonfinite_error(bad, self._steps)
        storage.lerp_(self._schedule.sample_weights(self._steps), finite)
        self._updates += 1
        if self._cached_averages or self._recomputed:
            self._invalidate_cache()
        return True

    def _after_optimizer_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # A fused optimizer under a GradScaler runs, and calls its hooks, even where the scaler has it skip the step.
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and found_inf.item():
            return
        self._check_not_applied("A step of the attached optimizer")
        self._count_step()

    @property
    def every(self) -> int:
        """The number of optimizer steps between two samples."""
        return self._every

    @property
    def num_steps(self) -> int:
        """The optimizer steps counted so far."""
        return self._steps

    @property
    def num_updates(self) -> int:
        """The samples taken so far."""
        return self._updates

    @property
    def num_skipped(self) -> int:
        """The samples not taken because the weights held NaN or inf."""
        return self._skipped

    def decay(self, name: str | float) -> float:
        """The decay per optimizer step in an average's last update; before any update, in its first.

        >>> round(EMABank(nn.Linear(2, 1), [0.999], every=16).decay(0.999), 3)  # the warm-up holds it down
        0.972
        """
        return self._schedule.decay(self._schedule.average(name), self._steps)

    # Reading ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def applied(self, name: str | float, *, batchnorm: Statistics | None = None) -> Generator[nn.Module]:
        """Put an average into the live model, in place; the live weights return at the end, whatever happens.

        All buffers return too, such as counters that a forward pass inside the block has changed.

        >>> model = nn.Linear(2, 1)
        >>> bank = EMABank(model, [0.9])
        >>> with bank.applied(0.9):
        ...     output = model(torch.ones(1, 2))
        """
        self._check_not_applied("Another applied()")
        name = self.resolve(name)
        statistics = batchnorm or self.statistics(name)
        values = rank_means(self._model, self._values(name, statistics))
        with swapped(self._model, values, Swap(self, name, statistics)):
            yield self._model

    def evaluate(
        self,
        fn: Callable[[nn.Module], Result],
        *,
        averages: Iterable[str | float] | None = None,
        batchnorm: Statistics | None = None,
    ) -> dict[str, Result]:
        """Call `fn(model)` with the live weights and with every average (or some) in the model; results by name.

        The model is in eval mode without gradients, and every call draws the same random numbers. Afterwards modes and
        random streams are as before. The live weights have their own batch-norm statistics.

        >>> model = nn.Linear(2, 1)
        >>> EMABank(model, [0.9]).evaluate(lambda model: tuple(model(torch.ones(3, 2)).shape))
        {'live': (3, 1), 'ema-0.9': (3, 1)}
        """
        results: dict[str, Result] = {}
        for name in map(self.resolve, (LIVE, *self.names) if averages is None else averages):
            statistics = "averaged" if name == LIVE else batchnorm
            with self.applied(name, batchnorm=statistics) as model, eval_mode(model), preserved_rng(), torch.no_grad():
                results[name] = fn(model)
        return results

    def statistics(self, name: str | float) -> Statistics:
        """Which batch-norm statistics an average is read with by default: recomputed ones while they are current.

        >>> EMABank(nn.BatchNorm1d(2), [0.9]).statistics(0.9)
        'averaged'
        """
        return "averaged" if self._current_statistics(self.resolve(name)) is None else "recomputed"

    @outside_inference_mode
    def weights(self, name: str | float, *, batchnorm: Statistics | None = None, full: bool = False) -> dict[str, Any]:
        """An average as a plain state dict of copies, with the model's own keys, in the stored precision.

        For a sharded model (FSDP2) it holds sharded tensors. `full=True` gathers them one by one,
        so that every rank has the whole average; all ranks must call it.

        >>> model = nn.Linear(2, 1)
        >>> sorted(EMABank(model, [0.9]).weights(0.9))
        ['bias', 'weight']
        """
        values = self._values(name, batchnorm)
        if not full:
            return state_dict_with(self._model, values)
        state = state_dict_with(self._model, rank_means(self._model, values))
        return {key: full_tensor(value) if isinstance(value, Tensor) else value for key, value in state.items()}

    @outside_inference_mode
    def module(self, name: str | float, *, batchnorm: Statistics | None = None) -> nn.Module:
        """A stand-alone copy of the model with an average in it, in eval mode, without gradients or hooks.

        >>> EMABank(nn.Linear(2, 1), [0.9]).module(0.9).training
        False
        """
        values = self._values(name, batchnorm)
        try:
            return copy_module(self._model, values, exclude=self)
        except Exception as error:
            raise RuntimeError(
                f"A {type(unwrap(self._model)).__name__} cannot be copied ({error}): take bank.weights(name), "
                "bank.copy_to(a model you have built, name), or bank.applied(name) instead."
            ) from error

    def copy_to(self, model: nn.Module, name: str | float, *, batchnorm: Statistics | None = None) -> None:
        """Copy an average, and the tensors that are not averaged, into a model of the same architecture.

        >>> model, other = nn.Linear(2, 1), nn.Linear(2, 1)
        >>> EMABank(model, [0.9]).copy_to(other, 0.9)
        >>> torch.equal(model.weight, other.weight)
        True
        """
        self._check_not_applied("copy_to()")
        if not isinstance(model, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"model must be a torch.nn.Module; got a {type(model).__name__}.")
        reshard(fsdp_modules(model))
        check_materialized(model)
        values = self._values(name, batchnorm)
        source = {part.name: part.tensor for part in tensor_refs(self._model)}
        target = {part.name: part.tensor for part in tensor_refs(model)}
        check_shapes("The model to copy to does not fit the bank's", tensor_shapes(source), tensor_shapes(target))
        copies = Copies()
        with torch.no_grad():
            for key, tensor in target.items():
                if key in values or tensor is not source[key]:
                    # Not through .data: whoever looks at version counters shall see that the tensor was written.
                    value = local_shard(values.get(key, source[key]), tensor)
                    copies.add(to_local(tensor) if is_sharded(tensor) else tensor, value)
            copies.finish()

    @torch.no_grad()
    def call(self, name: str | float, *inputs: Any, batchnorm: Statistics | None = None, **keywords: Any) -> Any:
        """The model's output with an average's weights, in eval mode; the live weights are not touched.

        The average is gathered at the first call and kept until the next update.

        >>> EMABank(nn.Linear(2, 1), [0.9]).call(0.9, torch.ones(4, 2)).shape
        torch.Size([4, 1])
        """
        name = self.resolve(name)
        batchnorm = batchnorm or self.statistics(name)
        root = unwrap(self._model)
        if fsdp_modules(self._model):
            with self.applied(name, batchnorm=batchnorm), eval_mode(root):
                return self._model(*inputs, **keywords)
        values = self._values(name, batchnorm, reuse=True)
        if swap_in(self._model) is not None:  # by applied(name), or the values could not have been read
            with eval_mode(root):
                return root(*inputs, **keywords)
        with holding(root, functional_params(root, values), Swap(self, name, batchnorm)), eval_mode(root):
            return root(*inputs, **keywords)

    def functional(self, name: str | float, *, batchnorm: Statistics | None = None) -> dict[str, Tensor]:
        """An average's tensors by their paths in the unwrapped model, for `torch.func.functional_call`.

        >>> sorted(EMABank(nn.Linear(2, 1), [0.9]).functional(0.9))
        ['bias', 'weight']
        """
        if fsdp_modules(self._model):
            raise RuntimeError(
                "functional() does not work with fully_shard, whose forward pass gathers the live weights, whatever "
                "functional_call puts in their place; use bank.call(name, ...) or bank.applied(name)."
            )
        return functional_params(self._model, self._values(name, batchnorm))

    @property
    def model(self) -> nn.Module:
        """The live model, as it was given."""
        return self._model

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the averages, in their order."""
        return self._schedule.names

    def resolve(self, name: str | float) -> str:
        """The name of an average, given its name, the number of its `EMA(decay=)`, or "live".

        >>> EMABank(nn.Linear(2, 1), {"slow": 0.999}).resolve(0.999)
        'slow'
        """
        return self._schedule.resolve(name)

    def rule(self, name: str | float) -> Rule:
        """The rule of an average.

        >>> EMABank(nn.Linear(2, 1), {"slow": 0.999}).rule("slow").decay
        0.999
        """
        return self._schedule.rules[self._schedule.average(name)]

    # For the library's own modules

    def _average_state(self, name: str) -> dict[str, Any]:
        """An average's rule and counts as plain values, as in `state_dict()`."""
        return self._schedule.state(name)

    def _averaged_keys(self) -> frozenset[str]:
        """The keys of `weights(name)` that hold averages; the others hold live values."""
        self._refresh()
        marks: dict[str, Any] = {name: object() for name in self._tensors.names}
        known = {id(mark) for mark in marks.values()}
        return frozenset(key for key, value in state_dict_with(self._model, marks).items() if id(value) in known)

    def _equal_by_warmup(self) -> list[str]:
        """The averages that are equal so far, because the same decay warm-up has held all of them down."""
        return self._schedule.equal_by_warmup()

    def _store_recomputed(self, name: str, statistics: Mapping[str, Tensor]) -> None:
        """Keep recomputed batch-norm statistics (by buffer name) for an average until its next update."""
        self._recomputed[name] = (self._steps, dict(statistics))
        self._cached_averages.clear()

    # State ------------------------------------------------------------------------------------------------------------

    @outside_inference_mode
    def state_dict(self) -> dict[str, Any]:
        """Everything the bank knows, as copies; loads with `weights_only=True`. The live weights are not in it.

        >>> sorted(EMABank(nn.Linear(2, 1), [0.9]).state_dict())
        ['averages', 'every', 'format', 'num_skipped', 'num_steps', 'num_updates', 'recomputed']
        """
        self._check_not_applied("state_dict()")
        self._finish_check()
        self._refresh()
        averages = {
            name: {**self._schedule.state(name), "tensors": rank_means(self._model, tensors)}
            for name, tensors in self._read(*self.names).items()
        }
        return {
            "format": FORMAT,
            "every": self._every,
            "num_steps": self._steps,
            "num_updates": self._updates,
            "num_skipped": self._skipped,
            "averages": averages,
            "recomputed": {
                name: {"step": step, "tensors": {key: tensor.clone() for key, tensor in tensors.items()}}
                for name, (step, tensors) in self._recomputed.items()
            },
        }

    @outside_inference_mode
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where the bank that returned `state` was. It must have the same averages, period and tensors.

        Raises a ValueError, and changes nothing, if the state is damaged or does not match.

        >>> bank = EMABank(nn.Linear(2, 1), [0.9])
        >>> bank.load_state_dict(bank.state_dict())
        """
        self._check_not_applied("load_state_dict()")
        self._refresh()
        # Everything is checked before anything changes.
        self._schedule.check_state(state)
        for name, saved in state["averages"].items():
            self._tensors.check_average(f"The saved average {name!r} does not fit the model", saved["tensors"])
        for name, saved in state["recomputed"].items():
            what = f"The recomputed statistics of {name!r} do not fit the model"
            self._tensors.check_statistics(what, saved["tensors"])
        for index, name in enumerate(self.names):
            self._tensors.write(index, state["averages"][name]["tensors"])
            self._schedule.load(name, state["averages"][name])
        self._steps, self._updates, self._skipped = state["num_steps"], state["num_updates"], state["num_skipped"]
        self._pending_check = None
        self._invalidate_cache()
        for name, saved in state["recomputed"].items():
            self._recomputed[name] = (saved["step"], {key: value.clone() for key, value in saved["tensors"].items()})

    def to(self, device: torch.device | str | None) -> "EMABank":
        """Move the averages to a device; None moves each to the device of its live tensor.

        >>> EMABank(nn.Linear(2, 1), [0.9]).to("cpu").names
        ('ema-0.9',)
        """
        self._check_not_applied("to()")
        self._refresh()
        self._tensors.to(None if device is None else torch.device(device))
        self._cached_averages = {}
        return self

    def __repr__(self) -> str:
        """The averages of the bank, a line each.

        >>> from emabank import EMA
        >>> EMABank(nn.Linear(2, 1), {"fast": 0.99, "slow": EMA(0.999, warmup=None)}, steps=10_000)
        EMABank of Linear, sampled every 4 steps: 0 of 10,000 steps, 0 updates
          fast  decay 0.99 per step, half-life 69 steps (0.69 % of the run), warm-up 51 steps
          slow  decay 0.999 per step, half-life 693 steps (6.9 % of the run)
        """
        run = self._schedule.steps
        every = "step" if self._every == 1 else f"{self._every} steps"
        counted = f"{self._steps:,} steps" if run is None else f"{self._steps:,} of {run:,} steps"
        model = type(unwrap(self._model)).__name__
        lines = [f"EMABank of {model}, sampled every {every}: {counted}, {self._updates:,} updates"]
        width = max(map(len, self.names))
        for name, rule in self._schedule.rules.items():
            lines.append(f"  {name:<{width}}  {rule.describe(self._every, run)}")
        return "\n".join(lines)

    def __getstate__(self) -> dict[str, Any]:
        # A copy (deepcopy, pickle) has its own model and averages; the optimizer's hook stays with the original.
        self._check_not_applied("A copy of the bank")
        self._finish_check()
        return {**self.__dict__, "_handle": None, "_cached_averages": {}}

    # Guards -----------------------------------------------------------------------------------------------------------

    def _start_check(self) -> Tensor:
        """Check this sample on its accelerator, without waiting for the result; `lerp_` moves nothing if it is bad.

        The next update, or whoever reads an average first, asks for the result. By then it has long arrived.
        """
        finite, wait = self._tensors.storage.start_check()
        step, updates = self._steps, self._updates
        progress = {name: replace(progress) for name, progress in self._schedule.progress.items()}

        def check() -> None:
            bad = wait()
            if bad:
                self._updates = updates
                self._schedule.progress.update(progress)
                raise self._nonfinite_error(bad, step)

        self._pending_check = check
        return finite

    def _finish_check(self) -> None:
        """Raise if the last sample, checked on an accelerator, held NaN or inf: it was not averaged, nor counted."""
        check, self._pending_check = self._pending_check, None
        if check is not None:
            check()

    def _nonfinite_error(self, indices: list[int], step: int) -> FloatingPointError:
        names = ", ".join(repr(self._tensors.names[index]) for index in indices[:5])
        return FloatingPointError(
            f"The live weights hold NaN or inf at step {step}, in {names}: this step was not averaged. "
            "bank.copy_to(model, name) goes back to an average; "
            'EMABank(..., on_nonfinite="skip") passes over such steps.'
        )

    def _warn_if_reloaded(self) -> None:
        self._refresh()
        left = self._tensors.initial_share_left()
        if -0.5 < left < 0.5:
            warnings.warn(
                f"After the first step {max(left, 0.0):.0%} of the weights that the bank was built with are left, less "
                "than one step leaves: if a checkpoint was loaded since, call bank.reset() after loading, or the "
                "averages begin with the weights from before.",
                stacklevel=4,
            )

    def _is_attached(self) -> bool:
        hooks = None if self._handle is None else self._handle.hooks_dict_ref()
        return hooks is not None and self._handle is not None and self._handle.id in hooks

    def _check_can_update(self) -> None:
        self._check_not_applied("update()")
        if self._is_attached():
            raise RuntimeError(
                "update() while the bank is attached to an optimizer would count every step twice: drop the call, "
                "or remove() the handle that attach() returned."
            )
        self._handle = None

    # What is read -----------------------------------------------------------------------------------------------------

    @outside_inference_mode
    def _values(
        self, name: str | float, batchnorm: Statistics | None, *, reuse: bool = False, check: bool = True
    ) -> dict[str, Tensor]:
        """What an average puts in place of the live values, by plain name: the same ones, before it has begun.

        Copies that nobody else holds, unless `reuse`: then the tensors of an average are read once per update.
        Unless `check` is False, NaN in an average is an error, which an accelerator is waited for.
        """
        self._finish_check()
        name = self.resolve(name)
        check_choice("batchnorm", batchnorm, (None, "averaged", "recomputed"))
        batchnorm = batchnorm or self.statistics(name)
        swap = swap_in(self._model)
        if swap is not None and swap != Swap(self, name, batchnorm):
            raise RuntimeError(
                f"Inside applied({swap.name!r}) only that average can be read, by that bank and thread: the model "
                f"holds it now. Read {name!r} after the with block."
            )
        self._refresh()
        if name == LIVE:
            values: dict[str, Tensor] = {}
        elif not self._schedule.has_begun(name):
            values = self._tensors.live()
        elif not check:
            values = self._tensors.read(self.names.index(name))
        elif not reuse:
            values = self._read(name)[name]
        else:
            values = self._cached_averages.get(name) or self._cached_averages.setdefault(name, self._read(name)[name])
        if batchnorm == "averaged":
            return values
        statistics = self._current_statistics(name)
        if statistics is None:
            raise RuntimeError(
                f"There are no recomputed batch-norm statistics for {name!r} as it is now (they last until the next "
                "update): call recalibrate_batchnorm(bank, loader) first."
            )
        return {**values, **{key: tensor.clone() for key, tensor in statistics.items()}}

    def _read(self, *names: str) -> dict[str, dict[str, Tensor]]:
        """Copies of the tensors of these averages. All of them are checked at once: an accelerator is waited for."""
        averages = {name: self._tensors.read(self.names.index(name)) for name in names}
        bad = nonfinite({(name, key): value for name, values in averages.items() for key, value in values.items()})
        if bad:
            name = bad[0][0]
            keys = [repr(key) for average, key in bad if average == name]
            raise FloatingPointError(
                f"The average {name!r} holds NaN or inf in {', '.join(keys[:5])}, taken in from the live "
                f"weights in its last updates: load an earlier state, or restart it with bank.reset({name!r})."
            )
        return averages

    def _current_statistics(self, name: str) -> dict[str, Tensor] | None:
        """The recomputed statistics of an average, unless its weights have moved since."""
        step, statistics = self._recomputed.get(name, (-1, {}))
        # Where weights are read from the live model, every step moves them.
        follows_live = name == LIVE or not self._schedule.has_begun(name) or self._tensors.has_unaveraged_trainable()
        return None if step < 0 or (follows_live and step != self._steps) else statistics

    def _refresh(self) -> None:
        if not self._tensors.refresh():
            self._cached_averages.clear()

    def _invalidate_cache(self) -> None:
        """Forget what was derived from the averages as they were."""
        self._cached_averages: dict[str, dict[str, Tensor]] = {}
        self._recomputed: dict[str, tuple[int, dict[str, Tensor]]] = {}

    def _check_not_applied(self, what: str) -> None:
        swap = swap_in(self._model)
        if swap is not None:
            other = "" if swap.bank is self else " of another bank"
            raise RuntimeError(
                f"{what} inside applied({swap.name!r}){other}: the model holds that average now, not its live weights; "
                "do it after the with block."
            )
