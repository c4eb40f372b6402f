"""How averages are handed out: in place, as a state dict, as a module, into another model, or for one call.

The base of EMABank that reads and never counts. Imports what knows names (tracked, ledger) and models (copies).
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from emabank.copies import (
    Swap,
    functional_tensors,
    holding,
    places,
    plain_state_dict,
    standalone,
    swap_in,
    swapped,
)
from emabank.ledger import LIVE, Ledger, Rule
from emabank.modules import evaluating, ordinary_tensors, parts_of, refuse_without_data, unwrap
from emabank.processes import means
from emabank.sharded import gathers, is_sharded, local, part_of, reshard, whole
from emabank.tracked import Tracked, nonfinite, refuse_misfit

Statistics = Literal["averaged", "recomputed"]


class Readable:
    """What can be read of a bank."""

    def __init__(self, model: nn.Module, ledger: Ledger, tracked: Tracked) -> None:
        self._model, self._ledger, self._tracked = model, ledger, tracked
        self._steps = 0
        self._outdate()

    @contextmanager
    def applied(self, name: str | float, *, batchnorm: Statistics = "averaged") -> Generator[nn.Module]:
        """The live model with an average in it, in place; restored at the end, whatever happens.

        >>> from emabank import EMABank
        >>> model = nn.Linear(2, 1)
        >>> bank = EMABank(model, [0.9])
        >>> with bank.applied(0.9):
        ...     output = model(torch.ones(1, 2))
        """
        self._refuse_if_applied("Another applied()")
        name = self.resolve(name)
        with swapped(self._model, self._values(name, batchnorm), Swap(self, name, batchnorm)):
            yield self._model

    @ordinary_tensors
    def weights(self, name: str | float, *, batchnorm: Statistics = "averaged", full: bool = False) -> dict[str, Any]:
        """An average as a plain state dict of copies, with the model's own keys, in the stored precision.

        Of a sharded model (FSDP2) it holds sharded tensors, each process its part. `full=True` gathers them, one after
        the other, so that every process has the whole average; all of them must ask for it.

        >>> from emabank import EMABank
        >>> model = nn.Linear(2, 1)
        >>> sorted(EMABank(model, [0.9]).weights(0.9))
        ['bias', 'weight']
        """
        values = self._values(name, batchnorm)
        if not full:
            return plain_state_dict(self._model, values)
        state = plain_state_dict(self._model, means(self._model, values))
        return {key: whole(value) if isinstance(value, Tensor) else value for key, value in state.items()}

    @ordinary_tensors
    def module(self, name: str | float, *, batchnorm: Statistics = "averaged") -> nn.Module:
        """A stand-alone copy of the model with an average in it: eval mode, no grad, none of the user's hooks.

        >>> from emabank import EMABank
        >>> EMABank(nn.Linear(2, 1), [0.9]).module(0.9).training
        False
        """
        values = self._values(name, batchnorm)
        try:
            return standalone(self._model, values, without=self)
        except Exception as error:
            raise RuntimeError(
                f"A {type(unwrap(self._model)).__name__} cannot be copied ({error}): take bank.weights(name), "
                "bank.copy_to(a model you have built, name), or bank.applied(name) instead."
            ) from error

    def copy_to(self, model: nn.Module, name: str | float, *, batchnorm: Statistics = "averaged") -> None:
        """Copy an average, and what is not averaged, into the tensors of a model of the same architecture.

        >>> from emabank import EMABank
        >>> model, other = nn.Linear(2, 1), nn.Linear(2, 1)
        >>> EMABank(model, [0.9]).copy_to(other, 0.9)
        >>> torch.equal(model.weight, other.weight)
        True
        """
        self._refuse_if_applied("copy_to()")
        reshard(gathers(model))
        refuse_without_data(model)
        values = self._values(name, batchnorm)
        source = {part.name: part.tensor for part in parts_of(self._model)}
        target = {part.name: part.tensor for part in parts_of(model)}
        refuse_misfit("The model to copy to does not fit the bank's", shapes(source), shapes(target))
        with torch.no_grad():
            for key, tensor in target.items():
                if key in values or tensor is not source[key]:
                    # Not through .data: whoever looks at version counters shall see that the tensor was written.
                    value = part_of(values.get(key, source[key]), tensor)
                    local(tensor).copy_(value) if is_sharded(tensor) else tensor.copy_(value)

    @torch.no_grad()
    def call(self, name: str | float, *inputs: Any, batchnorm: Statistics = "averaged", **keywords: Any) -> Any:
        """The model's output with an average's weights, in eval mode, without a touch to the live ones.

        The average is gathered at the first call and kept until the next update.

        >>> from emabank import EMABank
        >>> EMABank(nn.Linear(2, 1), [0.9]).call(0.9, torch.ones(4, 2)).shape
        torch.Size([4, 1])
        """
        name = self.resolve(name)
        root = unwrap(self._model)
        if gathers(self._model):
            with self.applied(name, batchnorm=batchnorm), evaluating(root):
                return self._model(*inputs, **keywords)
        values = self._values(name, batchnorm, reuse=True)
        with evaluating(root):
            if swap_in(self._model) is not None:  # by applied(name), or the values could not have been read
                return root(*inputs, **keywords)
            with holding(root, places(root), functional_tensors(root, values), Swap(self, name, batchnorm)):
                return root(*inputs, **keywords)

    def functional(self, name: str | float, *, batchnorm: Statistics = "averaged") -> dict[str, Tensor]:
        """An average's tensors by their paths in the unwrapped model, for `torch.func.functional_call`.

        >>> from emabank import EMABank
        >>> sorted(EMABank(nn.Linear(2, 1), [0.9]).functional(0.9))
        ['bias', 'weight']
        """
        if gathers(self._model):
            raise RuntimeError(
                "functional() of a model with fully_shard: its forward pass gathers the live weights, whatever "
                "functional_call puts in their place; use bank.call(name, ...) or bank.applied(name)."
            )
        return functional_tensors(self._model, self._values(name, batchnorm))

    @property
    def model(self) -> nn.Module:
        """The live model, as it was given."""
        return self._model

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the averages, in their order."""
        return self._ledger.names

    def resolve(self, name: str | float) -> str:
        """The name of the average that is meant: by its name, by the number of its `EMA(decay=)`, or "live".

        >>> from emabank import EMABank
        >>> EMABank(nn.Linear(2, 1), {"slow": 0.999}).resolve(0.999)
        'slow'
        """
        return self._ledger.resolve(name)

    def rule(self, name: str | float) -> Rule:
        """The rule of an average.

        >>> from emabank import EMABank
        >>> EMABank(nn.Linear(2, 1), {"slow": 0.999}).rule("slow").decay
        0.999
        """
        return self._ledger.rules[self._ledger.average(name)]

    def standing(self, name: str | float) -> dict[str, Any]:
        """An average's rule and its counts as plain values, as `state_dict()` has them.

        >>> from emabank import EMABank
        >>> EMABank(nn.Linear(2, 1), [0.9]).standing(0.9)["samples"]
        0
        """
        return self._ledger.state(self._ledger.average(name))

    def averaged_keys(self) -> frozenset[str]:
        """The keys of `weights(name)` that hold averages; what the others hold is the live model's.

        >>> from emabank import EMABank
        >>> sorted(EMABank(nn.BatchNorm1d(2), [0.9]).averaged_keys())
        ['bias', 'running_mean', 'running_var', 'weight']
        """
        self._verify()
        marks: dict[str, Any] = {name: object() for name in self._tracked.names}
        known = {id(mark) for mark in marks.values()}
        return frozenset(key for key, value in plain_state_dict(self._model, marks).items() if id(value) in known)

    def keep_recomputed(self, name: str, statistics: Mapping[str, Tensor]) -> None:
        """Keep recomputed batch-norm statistics (by plain buffer name) for an average until its next update.

        >>> from emabank import EMABank
        >>> EMABank(nn.BatchNorm1d(1), [0.9]).keep_recomputed("ema-0.9", {"running_mean": torch.ones(1)})
        """
        self._recomputed[self.resolve(name)] = (self._steps, dict(statistics))
        self._gathered.clear()

    # What is read -----------------------------------------------------------------------------------------------------

    @ordinary_tensors
    def _values(self, name: str | float, batchnorm: str, *, reuse: bool = False) -> dict[str, Tensor]:
        """What an average puts in place of the live values, by plain name: the same ones, before it has begun.

        Copies that nobody else holds, unless `reuse`: then the tensors of an average are read once per update.
        """
        name = self.resolve(name)
        one_of("batchnorm", batchnorm, ("averaged", "recomputed"))
        swap = swap_in(self._model)
        if swap is not None and swap != Swap(self, name, batchnorm):
            raise RuntimeError(
                f"Inside applied({swap.name!r}) only that average can be read, by that bank and thread: the model "
                f"holds it now. Read {name!r} after the with block."
            )
        self._verify()
        if name == LIVE:
            values: dict[str, Tensor] = {}
        elif not self._ledger.has_begun(name):
            values = self._tracked.live()
        elif not reuse:
            values = self._read(name)
        else:
            values = self._gathered.get(name) or self._gathered.setdefault(name, self._read(name))
        return {**values, **self._statistics(name)} if batchnorm == "recomputed" else values

    def _read(self, name: str) -> dict[str, Tensor]:
        values = self._tracked.read(self.names.index(name))
        bad = nonfinite(values)
        if bad:
            raise FloatingPointError(
                f"The average {name!r} holds NaN or inf in {', '.join(map(repr, bad[:5]))}, taken in from the live "
                f"weights in its last updates: load a state from before, or start it afresh with bank.reset({name!r})."
            )
        return values

    def _statistics(self, name: str) -> dict[str, Tensor]:
        step, statistics = self._recomputed.get(name, (-1, {}))
        # Where weights are read from the live model, every step moves them.
        follows_live = name == LIVE or not self._ledger.has_begun(name) or self._tracked.leaves_out_trainable()
        if step < 0 or (follows_live and step != self._steps):
            raise RuntimeError(
                f"There are no recomputed batch-norm statistics for {name!r} as it is now (they last until the next "
                "update): call recalibrate_batchnorm(bank, loader) first."
            )
        return {key: tensor.clone() for key, tensor in statistics.items()}

    def _verify(self) -> None:
        if not self._tracked.verify():
            self._gathered.clear()

    def _outdate(self) -> None:
        """Forget what was derived from the averages as they were."""
        self._gathered: dict[str, dict[str, Tensor]] = {}
        self._recomputed: dict[str, tuple[int, dict[str, Tensor]]] = {}

    def _refuse_if_applied(self, what: str) -> None:
        swap = swap_in(self._model)
        if swap is not None:
            other = "" if swap.bank is self else " of another bank"
            raise RuntimeError(
                f"{what} inside applied({swap.name!r}){other}: the model holds that average now, not its live weights; "
                "do it after the with block."
            )


def one_of(argument: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raise unless an argument has one of the values it may have.

    >>> one_of("buffers", "ignore", ("average", "copy"))
    Traceback (most recent call last):
    ...
    ValueError: buffers='ignore': allowed are 'average' and 'copy'.
    """
    if value not in allowed:
        raise ValueError(f"{argument}={value!r}: allowed are {' and '.join(map(repr, allowed))}.")


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The shapes of named tensors.

    >>> shapes({"weight": torch.zeros(2, 3)})
    {'weight': (2, 3)}
    """
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
