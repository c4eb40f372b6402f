"""What the drop-ins share: live tensors beside their averages, the move, the warm-up and the check for NaN."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from emabank._distributed import is_sharded
from emabank._model import check_shapes, nonfinite, tensor_refs, tensor_shapes
from emabank.rules import check_choice

OnNonfinite = Literal["ignore", "raise", "skip"]

# Private in torch, but what its optimizers are built on: one call for many tensors.
_lerp_all = torch._foreach_lerp_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


class Pair(NamedTuple):
    """A tensor of the average and the live one of the same name, both detached."""

    name: str
    average: Tensor
    live: Tensor
    is_parameter: bool

    @property
    def is_averaged(self) -> bool:
        """Whether it can be averaged at all. Counters and masks of integers are copied."""
        return self.average.is_floating_point() or self.average.is_complex()


def pair_modules(average: nn.Module, live: nn.Module) -> list[Pair]:
    """The parameters and buffers of two modules by name, tied ones once. DDP and torch.compile do not matter."""
    averages = {ref.name: ref for ref in tensor_refs(average)}
    lives = {ref.name: ref.tensor.detach() for ref in tensor_refs(live)}
    expected = {name: ref.tensor.detach() for name, ref in averages.items()}
    check_shapes("The live model must have the tensors of its average", tensor_shapes(expected), tensor_shapes(lives))
    return [Pair(name, expected[name], lives[name], ref.is_parameter) for name, ref in averages.items()]


def pair_parameters(averages: Sequence[Tensor], parameters: Iterable[Tensor]) -> list[Pair]:
    """The tensors of two lists by position; their number and shapes must agree."""
    lives = {f"parameter {index}": parameter.detach() for index, parameter in enumerate(parameters)}
    expected = {f"parameter {index}": average.detach() for index, average in enumerate(averages)}
    check_shapes("The parameters must be those of the average", tensor_shapes(expected), tensor_shapes(lives))
    return [Pair(name, average, lives[name], True) for name, average in expected.items()]


def lerp_(pairs: Sequence[Pair], weight: float) -> None:
    """Move the averages towards the live tensors by a weight, in one call; copy what cannot be averaged."""
    averaged = [pair for pair in pairs if pair.is_averaged]
    if averaged:
        averages = [pair.average for pair in averaged]
        _lerp_all(averages, [pair.live.to(pair.average.device, pair.average.dtype) for pair in averaged], weight)
    copy_([pair for pair in pairs if not pair.is_averaged])


def copy_(pairs: Sequence[Pair]) -> None:
    """Copy the live tensors into the averages, across devices and dtypes."""
    for pair in pairs:  # one call for all would refuse the shards of FSDP2
        pair.average.copy_(pair.live)


def write_parameters(values: Sequence[Tensor], parameters: Iterable[Tensor]) -> None:
    """Copy values into parameters; their number and shapes must agree."""
    copy_([pair._replace(average=pair.live, live=pair.average) for pair in pair_parameters(values, parameters)])


def warmed_up(step: int, *, decay: float, min_decay: float, inv_gamma: float, power: float) -> float:
    """The warm-up by a power: 1 - (1 + step / γ)^-power, between the bounds."""
    return max(min(1.0 - (1.0 + step / inv_gamma) ** -power, decay), min_decay)


def is_skipped(lives: Iterable[tuple[str, Tensor]], on_nonfinite: OnNonfinite) -> bool:
    """Whether live parameters hold NaN or inf and the update is to be skipped; "raise" raises instead."""
    check_choice("on_nonfinite", on_nonfinite, ("ignore", "raise", "skip"))
    named = {} if on_nonfinite == "ignore" else {name: live.detach() for name, live in lives}
    if any(map(is_sharded, named.values())):
        raise ValueError(
            'on_nonfinite must be "ignore" for sharded parameters, because each rank would decide alone; got '
            f"{on_nonfinite!r}. Use an EMABank, whose ranks agree."
        )
    bad = nonfinite(named)
    if bad and on_nonfinite == "raise":
        raise FloatingPointError(f"The live weights must be finite; {bad[0]!r} holds NaN or inf. No average has moved.")
    return bool(bad)
