"""The averaged tensors of a model by name: followed wherever the model puts them, with their averages in a Storage.

A model may be moved, cast, given another memory format or have its tensors replaced while a bank watches it; this
room notices, and refuses what no longer fits. Knows nothing of rules and counts.
"""

from collections.abc import Callable, Iterable, Mapping
from operator import is_
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from emabank.modules import Part, Watch, ordinary_tensors, parts_of, refuse_without_data
from emabank.processes import Processes, Statistics
from emabank.sharded import gathers, is_sharded, like, local, part_of, reshard
from emabank.storage import Storage

Choice = Literal["all", "trainable"] | Callable[[str, nn.Parameter], bool]


class Tracked:
    """The tensors of `model` that are averaged, and `count` averages of each."""

    @ordinary_tensors
    def __init__(
        self,
        model: nn.Module,
        count: int,
        *,
        parameters: Choice,
        statistics: bool,
        dtype: torch.dtype,
        device: torch.device | None,
    ) -> None:
        self._model = model
        parts = parts_of(model)
        chosen = [part for part in parts if part.is_parameter and _is_averaged(part, parameters)]
        if not chosen:
            raise ValueError(
                f"No parameter is averaged: parameters={parameters!r} chooses none of the "
                f"{sum(part.is_parameter for part in parts)} the model has."
            )
        if statistics:
            chosen += [part for part in parts if _is_statistic(part)]
        self.names = tuple(part.name for part in chosen)
        self._parameters = _shapes(part for part in parts if part.is_parameter)
        self._averaged, self._kinds = _shapes(chosen), [_kind(part.tensor) for part in chosen]
        self._follow(chosen)
        bad = self.nonfinite()
        if bad:
            raise ValueError(
                f"{_listed(bad)} hold NaN or inf when the bank is built: initialise them, freeze them if they are "
                "constants such as a mask (requires_grad=False), or leave them out with parameters=."
            )
        self._storage = Storage(self.data(), count, dtype=dtype, device=device)

    def __getstate__(self) -> dict[str, Any]:
        tied = dict.fromkeys(("_parts", "_lives", "_buffers", "_in_place", "_gathers"), ())
        return {**self.__dict__, "_watch": None, "_statistics": None, "_places": ([], []), **tied}

    # Following the model ----------------------------------------------------------------------------------------------

    @ordinary_tensors
    def verify(self) -> bool:
        """Make sure the averages are tied to the live tensors as they stand; False if they had to be tied anew."""
        reshard(self._gathers)
        if self._watch is not None and self._watch.unchanged() and self._are_in_place():
            return True
        reshard(gathers(self._model))
        refuse_without_data(self._model)
        parts = parts_of(self._model)
        now = _shapes(part for part in parts if part.is_parameter)
        refuse_misfit("The model's parameters have changed since the bank was built", self._parameters, now)
        by_name = {part.name: part for part in parts}
        gone = [name for name in self.names if name not in by_name]
        if gone:
            raise ValueError(f"{_listed(gone)} are no longer in the model: build a new bank for the changed model.")
        followed = [by_name[name] for name in self.names]
        refuse_misfit("The model's buffers have changed since the bank was built", self._averaged, _shapes(followed))
        for part, kind in zip(followed, self._kinds, strict=True):
            if _kind(part.tensor) != kind:
                raise ValueError(
                    f"{part.name!r} must be {kind}, as it was when the bank was built; got {part.tensor.dtype}: build "
                    "a new bank for the changed model."
                )
        self._follow(followed)
        self._storage = self._storage.bound_to(self.data())
        return False

    def _follow(self, parts: list[Part]) -> None:
        self._parts = parts
        self._lives = [part.tensor for part in parts]
        buffers = [part for part in parts if not part.is_parameter]
        self._places = [part.holder for part in buffers], [part.key for part in buffers]
        self._buffers = [part.tensor for part in buffers]
        self._watch: Watch | None = Watch(self._model)
        self._gathers = gathers(self._model)
        self._is_sharded = any(map(is_sharded, self._lives))
        self._statistics: Statistics | None = Statistics(self._model, self._lives)
        self._in_place = list(map(local, self._lives))

    def _are_in_place(self) -> bool:
        """Whether no averaged buffer was replaced, and the tensors have the memory, shape and stride that they had."""
        if not all(map(is_, map(dict.get, *self._places), self._buffers)):
            return False
        lives = map(local, self._lives) if self._is_sharded else self._lives
        try:
            return all(map(Tensor.is_set_to, lives, self._in_place))
        except RuntimeError:  # on another device
            return False

    def agree(self) -> None:
        """Let all processes have the same batch-norm statistics to average, before they take them in.

        All must come here. Parameters are the same on all of them, or lie in parts; where no statistics of a
        DistributedDataParallel model are averaged, nothing is said.
        """
        assert self._statistics is not None, "verify comes first"
        self._statistics.agree()

    def anywhere(self, here: bool) -> bool:
        """Whether it is so for the part of a sharded model that lies here, or for another part; all must ask."""
        processes = Processes.of_sharded(self._model) if self._is_sharded else None
        return here if processes is None else processes.any(here)

    def data(self) -> list[Tensor]:
        """What is taken into the averages: the live tensors, without autograd, and of each the part that lies here."""
        assert self._statistics is not None, "verify comes first"
        return [local(tensor) for tensor in self._statistics.tensors]

    def leaves_out_trainable(self) -> bool:
        """Whether training moves a parameter that is read from the live model, not averaged."""
        averaged = set(self.names)
        return any(p.is_parameter and p.tensor.requires_grad and p.name not in averaged for p in parts_of(self._model))

    @ordinary_tensors
    def to(self, device: torch.device | None) -> None:
        """Move the averages."""
        self._storage = self._storage.rebuilt(self.data(), device=device)

    # The averages -----------------------------------------------------------------------------------------------------

    def move(self, weights: list[float]) -> None:
        """Move average k towards the live tensors by weights[k], for all k in one pass."""
        self._storage.move(weights)

    def read(self, average: int) -> dict[str, Tensor]:
        """Copies of one average's tensors by plain name; spread over processes as the live ones are."""
        return self._spread(self._storage.read(average))

    def live(self) -> dict[str, Tensor]:
        """Copies of the live tensors by plain name, in the averages' precision."""
        return self._spread(self._storage.as_kept([local(live) for live in self._lives]))

    def write(self, average: int, values: Mapping[str, Tensor] | None = None) -> None:
        """Set one average's tensors, to the live ones where none are given."""
        if values is None:
            self._storage.write(average, self.data())
        else:
            named = zip(self.names, self._lives, strict=True)
            self._storage.write(average, [part_of(values[name], live) for name, live in named])

    def refuse_average(self, what: str, values: object) -> None:
        """Raise a ValueError unless these values can be written to an average: all of them, and finite there."""
        tensors = refuse_values(what, {part.name: part.tensor for part in self._parts}, values)
        kept = zip(self.names, self._storage.dtypes(), strict=True)
        _refuse_nonfinite(what, {name: local(tensors[name]).to(dtype) for name, dtype in kept})

    def refuse_statistics(self, what: str, values: object) -> None:
        """Raise a ValueError unless these values can stand in floating buffers of the model, and are finite."""
        named = cast("Mapping[str, object]", values) if isinstance(values, Mapping) else {}
        parts = [part for part in parts_of(self._model) if _is_floating_buffer(part) and part.name in named]
        _refuse_nonfinite(what, refuse_values(what, {part.name: part.tensor for part in parts}, values))

    def _spread(self, parts: list[Tensor]) -> dict[str, Tensor]:
        named = zip(self.names, self._lives, parts, strict=True)
        return {name: like(live, part) for name, live, part in named}

    # Numbers gone bad -------------------------------------------------------------------------------------------------

    def nonfinite(self, *, quick: bool = False, whole: bool = True) -> list[str]:
        """The names of live tensors that hold NaN or inf. `quick` looks at sums first, and (unless `whole`) of very
        large tensors at a part.
        """
        if quick and self._storage.looks_finite(whole=whole):
            return []
        return nonfinite(dict(zip(self.names, self.data(), strict=True)))

    def share_left(self) -> float:
        """How much of average 0 the live tensors still hold; 1 where chance alone could make it less than half.

        ⟨live, average⟩ / ⟨average, average⟩, each part of the average minus its mean. A step, even a long one, hardly
        changes it, because it goes in directions of its own; weights from elsewhere know nothing of the average and
        have about 0, within a standard deviation that falls with the number of weights.
        """
        shared, own, variance = self._storage.overlap(0)
        return shared / own if own > 0.0 and variance**0.5 < 0.1 * own else 1.0


def nonfinite(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of the tensors that hold NaN or inf: by their sums first, which costs a tenth of `isfinite`.

    >>> nonfinite({"fine": torch.ones(2), "bad": torch.tensor([1.0, float("nan")])})
    ['bad']
    """
    parts = {name: local(tensor) for name, tensor in tensors.items()}
    wide = {name: t.float() if t.is_floating_point() and t.dtype.itemsize == 1 else t for name, t in parts.items()}
    suspects = [name for name, tensor in wide.items() if not bool(torch.isfinite(tensor.sum()))]
    return [name for name in suspects if not bool(torch.isfinite(wide[name]).all())]  # a sum may overflow


def refuse_misfit(what: str, expected: Mapping[str, tuple[int, ...]], given: Mapping[str, tuple[int, ...]]) -> None:
    """Raise a ValueError that names what is missing, what is new and what has another shape.

    >>> refuse_misfit("The state does not fit", {"a": (2,)}, {"a": (3,)})
    Traceback (most recent call last):
    ...
    ValueError: The state does not fit: another shape: 'a' is (3,), not (2,).
    """
    missing = [name for name in expected if name not in given]
    added = [name for name in given if name not in expected]
    reshaped = [
        f"{name!r} is {given[name]}, not {expected[name]}"
        for name in expected
        if name in given and given[name] != expected[name]
    ]
    faults = [f"missing: {_listed(missing)}"] * bool(missing) + [f"new: {_listed(added)}"] * bool(added)
    faults += [f"another shape: {', '.join(reshaped[:5])}"] * bool(reshaped)
    if faults:
        raise ValueError(f"{what}: {'; '.join(faults)}.")


def refuse_values(what: str, lives: Mapping[str, object], values: object) -> Mapping[str, Tensor]:
    """The values; raise a ValueError unless they have the names of the live ones, and tensors their shapes and kinds.

    >>> refuse_values("The state does not fit", {"a": torch.zeros(2)}, {"a": torch.zeros(2, dtype=torch.long)})
    Traceback (most recent call last):
    ...
    ValueError: The state does not fit: 'a' must be a floating tensor; got torch.int64 (torch.strided, cpu).
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{what}: its tensors must be a mapping; got a {type(values).__name__}.")
    named = cast("Mapping[str, object]", values)
    for name, value in named.items():
        live = lives.get(name)
        if not isinstance(live, Tensor):
            continue
        if not isinstance(value, Tensor):
            raise ValueError(f"{what}: {name!r} must be a tensor; got a {type(value).__name__}.")
        if _kind(value) != _kind(live) or value.layout != live.layout or value.is_meta:
            got = f"{value.dtype} ({value.layout}, {value.device})"
            raise ValueError(f"{what}: {name!r} must be a {_kind(live)} tensor; got {got}.")
    refuse_misfit(what, _shapes_of(lives), _shapes_of(named))
    return cast("Mapping[str, Tensor]", named)


def _refuse_nonfinite(what: str, tensors: Mapping[str, Tensor]) -> None:
    bad = nonfinite(tensors)
    if bad:
        raise ValueError(f"{what}: {_listed(bad)} must be finite; got NaN or inf.")


def _kind(tensor: Tensor) -> str:
    return "complex" if tensor.is_complex() else "floating" if tensor.is_floating_point() else "integer"


def _is_averaged(part: Part, parameters: Choice) -> bool:
    tensor = part.tensor
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    if not tensor.requires_grad and nonfinite({part.name: tensor.data}):
        return False  # a constant, such as an attention mask of -inf: averaged with itself it would be NaN
    if callable(parameters):
        return bool(parameters(part.name, tensor))  # type: ignore[arg-type]
    if parameters not in ("all", "trainable"):
        raise ValueError(
            f'parameters={parameters!r}: allowed are "all", "trainable" and a function of name and parameter.'
        )
    return parameters == "all" or tensor.requires_grad


def _is_statistic(part: Part) -> bool:
    # Only these are means over batches. Others hold what must be exact: counters, masks, spectral norm's vectors.
    return _is_floating_buffer(part) and part.key in ("running_mean", "running_var")


def _is_floating_buffer(part: Part) -> bool:
    return not part.is_parameter and part.tensor.is_floating_point() and part.tensor.layout is torch.strided


def _shapes(parts: Iterable[Part]) -> dict[str, tuple[int, ...]]:
    return _shapes_of({part.name: part.tensor for part in parts})


def _shapes_of(values: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) if isinstance(value, Tensor) else () for name, value in values.items()}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(repr(name) for name in names[:5]) + more
