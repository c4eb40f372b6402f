"""Checkpoints in, one averaged checkpoint out, a piece of a tensor at a time.

Floating tensors are summed in float64 (complex ones in complex128) and rounded once, to the type they came in; what is
no such number is taken from the last checkpoint. May import formats.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from emabank.averaging.formats import (
    Checkpoint,
    Piece,
    Spec,
    is_weights,
    open_checkpoint,
    pieces,
    refuse_target,
    weights_in,
    write_checkpoint,
)

_STATISTICS = ("running_mean", "running_var")
Used = Sequence[tuple[Checkpoint, float]]


@dataclass(frozen=True)
class Fit:
    """What checkpoints have in common, and what becomes of it.

    Args:
        checkpoints: what the average is made of, each with its share; one whose share is 0 is not looked at.
        averaged: names of tensors that are averaged.
        copied: names of those that are taken from the last checkpoint: counts, masks, spectral norm's vectors.
        nbytes: of all tensors of one checkpoint.
        batchnorm: names of batch-norm statistics: averaged, they are those of no network, and should be measured again.
        key: under which the state dict is in the last file; None: it is the whole file.
        in_memory: checkpoints that can only be read whole, because they are in torch's older format or packed.
        differing: names of copied tensors in which the checkpoints differ, other than counts of batches; known only
            when the average was made.
    """

    checkpoints: tuple[tuple[Path, float], ...]
    averaged: tuple[str, ...]
    copied: tuple[str, ...]
    nbytes: int
    batchnorm: tuple[str, ...]
    key: str | None
    in_memory: tuple[Path, ...]
    differing: tuple[str, ...] = ()


def fit_together(
    checkpoints: Sequence[str | PathLike[str]],
    shares: Sequence[float] | None = None,
    *,
    out: str | PathLike[str] | None = None,
    key: str | None = None,
    replace_out: bool = False,
) -> Fit:
    """Look whether `average_checkpoints` could do it, without reading values; `ValueError` names what does not fit.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"bias": torch.zeros(2)}, f"{folder}/1.pt")
    ...     torch.save({"bias": torch.zeros(3)}, f"{folder}/2.pt")
    ...     fit_together([f"{folder}/1.pt", f"{folder}/2.pt"])  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    ValueError: 1.pt does not fit 2.pt: 'bias' is float32 [2] in the one and float32 [3] in the other.
    """
    used = _opened(checkpoints, shares, key)
    fit = _fit(used)
    if out is not None:
        refuse_target(Path(out), used[-1][0], [Path(each) for each in checkpoints], replace=replace_out)
    return fit


def average_checkpoints(
    checkpoints: Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    shares: Sequence[float] | None = None,
    *,
    key: str | None = None,
    replace_out: bool = False,
    tell: Callable[[int, int], None] | None = None,
) -> Fit:
    """Write the average of checkpoints, in the layout of the last one.

    Whatever the size of the tensors, only pieces of at most 1 MiB are held, a handful at a time. The file or folder is
    whole, or not there; what is beside the weights comes from the last checkpoint.

    Args:
        checkpoints: files (.safetensors, .pt, .pth, .bin, .ckpt, .index.json), or folders with one checkpoint each.
        out: where to write.
        shares: how much each counts, see `emabank.averaging.shares`; they add up to 1. By default all count the same.
        key: under which the state dict is in files of torch.save; by default that is found out.
        replace_out: whether something that is there already may be replaced.
        tell: is told how many of how many bytes are done.

    Raises:
        ValueError: where checkpoints are damaged, unsafe, not finite, or do not fit together; says which tensor.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (1, 2):
    ...         torch.save({"bias": torch.full((2,), float(step))}, f"{folder}/{step}.pt")
    ...     done = average_checkpoints([f"{folder}/1.pt", f"{folder}/2.pt"], f"{folder}/average.pt")
    ...     torch.load(f"{folder}/average.pt")
    {'bias': tensor([1.5000, 1.5000])}
    >>> done.averaged
    ('bias',)
    """
    used = _opened(checkpoints, shares, key)
    fit = _fit(used)
    last = used[-1][0]
    refuse_target(Path(out), last, [Path(each) for each in checkpoints], replace=replace_out)
    for checkpoint, _ in used:
        checkpoint.verify()
    specs, averaged = last.specs, frozenset(fit.averaged)
    same_as = _same_as(used, specs)
    total = sum(specs[name].nbytes for name in specs if name not in same_as)
    done, differing = 0, dict[str, None]()

    def make(name: str) -> Iterator[Tensor]:
        nonlocal done
        for piece in pieces(specs[name].shape):
            if name in averaged:
                yield _mean(name, specs[name], piece, used)
            else:
                yield _copy(name, piece, used, differing)
            done += (piece.stop - piece.start) * specs[name].dtype.itemsize
            if tell is not None:
                tell(done, total)

    write_checkpoint(last, Path(out), make, same_as)
    return replace(fit, differing=tuple(differing))


def _opened(paths: Sequence[str | PathLike[str]], shares: Sequence[float] | None, key: str | None) -> Used:
    shares = uniform_shares(len(paths)) if shares is None else shares
    if len(paths) != len(shares) or not paths:
        raise ValueError(f"There are {len(paths)} checkpoints and {len(shares)} shares; give one for each.")
    if not all(share >= 0 for share in shares) or not math.isclose(math.fsum(shares), 1.0, abs_tol=1e-9):
        raise ValueError(f"The shares {list(shares)} make no average: they are from 0 to 1, and add up to 1.")
    return [(open_checkpoint(Path(path), key), share) for path, share in zip(paths, shares, strict=True) if share]


def _fit(used: Used) -> Fit:
    last = used[-1][0]
    specs = last.specs
    for checkpoint, _ in used[:-1]:
        _refuse_misfit(last, specs, checkpoint)
    averaged = tuple(name for name, spec in specs.items() if spec.is_number and not _is_exact(name, specs))
    return Fit(
        checkpoints=tuple((checkpoint.path, share) for checkpoint, share in used),
        averaged=averaged,
        copied=tuple(name for name in specs if name not in frozenset(averaged)),
        nbytes=sum(spec.nbytes for spec in specs.values()),
        batchnorm=tuple(name for name in averaged if name.rpartition(".")[2] in _STATISTICS),
        key=next(iter(last.files.values())).key,
        in_memory=tuple(
            each.path for each, _ in used if not all(file.in_pieces for file in each.files.values())
        ),
    )  # fmt: skip


def _is_exact(name: str, specs: dict[str, Spec]) -> bool:
    """Whether these are the vectors of spectral norm, which belong to one matrix: means of them are vectors of none."""
    stem, last = name[:-1], name[-2:]
    if ".parametrizations." in f".{name}" and name.rpartition(".")[2] in ("_u", "_v"):
        return True
    return last in ("_u", "_v") and f"{stem}orig" in specs and f"{stem}u" in specs


def _mean(name: str, spec: Spec, piece: Piece, used: Used) -> Tensor:
    """Some elements of the average.

    It is the last checkpoint and shares of the differences from it, so that what is equal in all comes out as it is: to
    the last bit, and also where it is infinite, as in a mask.
    """
    wide = torch.complex128 if spec.dtype.is_complex else torch.float64
    *others, (last, _) = used
    base = last.read(name, piece).to(wide)
    total = base.clone()
    for checkpoint, share in others:
        part = checkpoint.read(name, piece).to(wide, copy=True)
        same = part == base
        total.add_(part.sub_(base).masked_fill_(same, 0), alpha=share)
    if not total.isfinite().all() and not total[~total.isfinite()].equal(base[~total.isfinite()]):
        raise ValueError(_blame(name, piece, used))
    return total.to(spec.dtype)


def _blame(name: str, piece: Piece, used: Used) -> str:
    for checkpoint, _ in used:
        if not checkpoint.read(name, piece).to(torch.complex128).isfinite().all():
            return f"{checkpoint.path} has NaN or infinite values in {name!r}; leave that checkpoint out."
    return f"The average of {name!r} is too large for its type."


def _copy(name: str, piece: Piece, used: Used, differing: dict[str, None]) -> Tensor:
    *others, (last, _) = used
    own = last.read(name, piece).contiguous()
    if own.dtype.is_floating_point or name.rpartition(".")[2] == "num_batches_tracked":
        return own  # those differ always
    if any(not torch.equal(checkpoint.read(name, piece), own) for checkpoint, _ in others):
        differing[name] = None
    return own


def _same_as(used: Used, specs: dict[str, Spec]) -> dict[str, str]:
    """Names of tensors that have another name as well, with that name; only where it is so in every checkpoint."""
    firsts: dict[tuple[object, ...], str] = {}
    found: dict[str, str] = {}
    for name in specs:
        first = firsts.setdefault(tuple(checkpoint.identity(name) for checkpoint, _ in used), name)
        if first != name:
            found[name] = first
    return found


def _refuse_misfit(last: Checkpoint, expected: dict[str, Spec], checkpoint: Checkpoint) -> None:
    given = checkpoint.specs
    what = f"{checkpoint.path} does not fit {last.path}"
    for name, spec in expected.items():
        if name not in given:
            raise ValueError(f"{what}: it has no tensor {name!r}.")
        if given[name] != spec:
            raise ValueError(f"{what}: {name!r} is {given[name]} in the one and {spec} in the other.")
    for name in given:
        if name not in expected:
            raise ValueError(f"{what}: it has a tensor {name!r}, and the other has none.")


# Which checkpoints, in which order ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """Checkpoints that are to be averaged, and those that are not."""

    checkpoints: tuple[Path, ...]
    """In order."""
    left_out: tuple[Path, ...] = ()
    """Those of a folder whose place in the order is unknown."""


def in_order(paths: Iterable[Path]) -> list[Path]:
    """As people count: checkpoint-900 before checkpoint-1000.

    >>> [path.name for path in in_order([Path("checkpoint-1000"), Path("checkpoint-900")])]
    ['checkpoint-900', 'checkpoint-1000']
    """
    return sorted(paths, key=_as_counted)


def _as_counted(path: Path) -> tuple[list[tuple[str, int]], str]:
    parts = [*re.split(r"([0-9]+)", path.as_posix()), "0"]
    return [(text, int(number)) for text, number in zip(parts[::2], parts[1::2], strict=True)], path.as_posix()


def find_checkpoints(paths: Sequence[Path]) -> Found:
    """The checkpoints that some files and folders are, or hold.

    Files, and folders that are a checkpoint, stay in the order given. A folder of checkpoints stands for all of them,
    in the order of the numbers in their names; those without a number (`last.ckpt`) are left out where others have one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("step-20.pt", "step-100.pt", "last.pt"):
    ...         Path(folder, name).touch()
    ...     found = find_checkpoints([Path(folder)])
    >>> [path.name for path in found.checkpoints], [path.name for path in found.left_out]
    (['step-20.pt', 'step-100.pt'], ['last.pt'])
    """
    checkpoints: list[Path] = []
    left_out: list[Path] = []
    for path in paths:
        if not path.is_dir():
            if not path.exists():
                raise FileNotFoundError(2, "There is no such checkpoint", str(path))
            checkpoints.append(path)
            continue
        some, others = _in_folder(path)
        checkpoints += some
        left_out += others
    real = [path.resolve() for path in checkpoints]
    twice = next((path for path, each in zip(checkpoints, real, strict=True) if real.count(each) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is named more than once; with weights one can count more than the others.")
    return Found(tuple(checkpoints), tuple(left_out))


def _in_folder(folder: Path) -> tuple[list[Path], list[Path]]:
    itself = weights_in(folder) is not None
    inside = [each for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".") and weights_in(each)]
    files = [each for each in folder.iterdir() if is_weights(each) and each.is_file()]
    if inside and (itself or files):
        raise ValueError(
            f"{folder} holds a checkpoint and folders with others, such as {in_order(inside)[0].name}; "
            "name those that you mean."
        )
    if itself:
        return [folder], []
    several = in_order(inside or files)
    if not several:
        raise ValueError(f"There is no checkpoint in {folder}, neither a file of weights nor a folder with one.")
    numbered = [path for path in several if re.search(r"[0-9]", path.name)]
    if len(numbered) < 2:
        return several, []
    return numbered, [path for path in several if path not in numbered]


# How much each counts -------------------------------------------------------------------------------------------------


def uniform_shares(count: int) -> list[float]:
    """The plain mean: a uniform soup, or stochastic weight averaging after the fact.

    >>> uniform_shares(4)
    [0.25, 0.25, 0.25, 0.25]
    """
    if count < 1:
        raise ValueError(f"The mean of {count} checkpoints: give at least one.")
    return [1.0 / count] * count


def last_shares(count: int, last: int) -> list[float]:
    """The mean of the last so many (LAWA: Kaddour 2022, "Stop wasting my time! Saving days of ImageNet and BERT
    training with latest weight averaging"); the others count nothing.

    >>> last_shares(4, 2)
    [0.0, 0.0, 0.5, 0.5]
    """
    if not 1 <= last <= count:
        raise ValueError(f"The last {last} of {count} checkpoints: give a number from 1 to {count}.")
    return [0.0] * (count - last) + uniform_shares(last)


def ema_shares(count: int, decay: float) -> list[float]:
    """An exponential moving average over the sequence: each counts `decay` times as much as the next.

    That is (1 - α)·α^k for the one k places before the last, over the sum of all: without the correction, the first
    checkpoint would count for all that might have been before it, with 0.9 and three of them 81%.

    >>> [round(share, 3) for share in ema_shares(3, 0.9)]
    [0.299, 0.332, 0.369]
    """
    if not 0.0 <= decay < 1.0:
        raise ValueError(f"A decay of {decay}: it is the weight of the past, a number from 0 to below 1, such as 0.9.")
    return given_shares(count, [decay ** (count - 1 - at) for at in range(count)])


def given_shares(count: int, weights: Sequence[float]) -> list[float]:
    """These weights, one for each checkpoint, over their sum.

    >>> given_shares(2, [3, 1])
    [0.75, 0.25]
    """
    if len(weights) != count:
        raise ValueError(f"There are {len(weights)} weights for {count} checkpoints; give one for each.")
    if not all(math.isfinite(weight) and weight >= 0.0 for weight in weights) or not any(weights):
        raise ValueError(f"The weights {list(weights)} make no average: give numbers from 0 on, and one above 0.")
    largest = max(weights)  # first, because the sum of large ones may not be finite
    scaled = [weight / largest for weight in weights]
    return [weight / math.fsum(scaled) for weight in scaled]
