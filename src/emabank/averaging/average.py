"""Average checkpoints on disk into one checkpoint, a chunk of a tensor at a time.

Floating-point tensors are summed in float64 (complex ones in complex128) and rounded once, to their own dtype. All
other tensors are copied from the last checkpoint.
"""

import math
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from emabank.averaging.folders import (
    Checkpoint,
    check_output_path,
    is_weights_file,
    open_checkpoint,
    suffix_of,
    weights_file,
    write_checkpoint,
)
from emabank.averaging.formats import Chunk, Spec, TorchFile, chunks

_Weighted = Sequence[tuple[Checkpoint, float]]

MEMORY = 12 * 2**20  # bytes: a few chunks in float64, and what describes the tensors


@dataclass(frozen=True)
class AveragePlan:
    """What an average is made of, and how each tensor is treated.

    Args:
        checkpoints: paths and weights; checkpoints with weight 0 are not opened.
        averaged: names of the tensors that are averaged.
        copied: names of the tensors that are copied from the last checkpoint: counts, masks, vectors of spectral norm.
        nbytes: size of all tensors of one checkpoint.
        batchnorm: names of averaged batch-norm statistics, which fit no network and should be recalibrated.
        key: key of the state dict in the last file; None if the file is the state dict.
        others: keys of other state dicts in the last file, such as an EMA, which are not averaged.
        in_memory: checkpoints that must be loaded completely: in torch's format from before 1.6, or compressed.
        memory: bytes of memory that averaging takes at most, beside the pages of mapped files, which the system drops
            when memory runs short.
        differing: names of copied tensors that differ between checkpoints, except batch counts; empty until the
            average has been computed.
    """

    checkpoints: tuple[tuple[Path, float], ...]
    averaged: tuple[str, ...]
    copied: tuple[str, ...]
    nbytes: int
    batchnorm: tuple[str, ...]
    key: str | None
    others: tuple[str, ...]
    in_memory: tuple[Path, ...]
    memory: int
    differing: tuple[str, ...] = ()


def plan_average(
    checkpoints: Sequence[str | PathLike[str]],
    weights: Sequence[float] | None = None,
    *,
    out: str | PathLike[str] | None = None,
    key: str | None = None,
    replace_out: bool = False,
) -> AveragePlan:
    """Check whether `average_checkpoints` can average these checkpoints, without reading values.

    The arguments and errors are those of `average_checkpoints`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"bias": torch.zeros(2)}, f"{folder}/1.pt")
    ...     torch.save({"bias": torch.zeros(3)}, f"{folder}/2.pt")
    ...     plan_average([f"{folder}/1.pt", f"{folder}/2.pt"])  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    ValueError: 1.pt does not match 2.pt: tensor 'bias' is float32 [2] in the former and float32 [3] in the latter.
    """
    return _open_and_plan(checkpoints, weights, out, key, replace_out=replace_out)[1]


def average_checkpoints(
    checkpoints: Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    weights: Sequence[float] | None = None,
    *,
    key: str | None = None,
    replace_out: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> AveragePlan:
    """Write the weighted average of checkpoints, in the layout of the last one.

    Memory use does not depend on the size of the tensors: a few chunks of at most 1 MiB. The output is complete or
    absent. Everything that is not a tensor comes from the last checkpoint.

    Args:
        checkpoints: files (.safetensors, .pt, .pth, .bin, .ckpt, .index.json), or folders with one checkpoint each.
        out: where to write the average.
        weights: one per checkpoint, with sum 1, for example from `ema_weights`; by default all are equal.
        key: key of the state dict in files of torch.save; by default it is detected.
        replace_out: whether to replace an existing file or folder.
        progress: called with the number of bytes done and the total.

    Raises:
        ValueError: a checkpoint is damaged, unsafe or not finite, or the tensors of two checkpoints do not match.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (1, 2):
    ...         torch.save({"bias": torch.full((2,), float(step))}, f"{folder}/{step}.pt")
    ...     plan = average_checkpoints([f"{folder}/1.pt", f"{folder}/2.pt"], f"{folder}/average.pt")
    ...     torch.load(f"{folder}/average.pt")
    {'bias': tensor([1.5000, 1.5000])}
    >>> plan.averaged
    ('bias',)
    """
    weighted, plan = _open_and_plan(checkpoints, weights, out, key, replace_out=replace_out)
    last = weighted[-1][0]
    specs, averaged, aliases = last.specs, frozenset(plan.averaged), _aliases(weighted)
    total = sum(spec.nbytes for name, spec in specs.items() if name not in aliases)
    done, differing, mean = 0, dict[str, None](), _Mean(weighted)

    def new_values(name: str) -> Iterator[Tensor]:
        nonlocal done
        for chunk in chunks(specs[name].shape):
            if name in averaged:
                yield mean(name, chunk)
            else:
                if _differs(name, chunk, weighted):
                    differing[name] = None
                yield last.read(name, chunk).contiguous()
            done += (chunk.stop - chunk.start) * specs[name].dtype.itemsize
            if progress is not None:
                progress(done, total)

    # Checksums are computed meanwhile, and compared before the average gets its name.
    pool = ThreadPoolExecutor(max_workers=1)
    checks = [pool.submit(file.check_checksums) for checkpoint, _ in weighted for file in checkpoint.files.values()]

    def check() -> None:
        for result in checks:
            result.result()

    try:
        write_checkpoint(last, Path(out), new_values, aliases, check)
    except ValueError:
        check()  # a damaged file is the better reason for values that are not finite
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return replace(plan, differing=tuple(differing))


def _open_and_plan(
    paths: Sequence[str | PathLike[str]],
    weights: Sequence[float] | None,
    out: str | PathLike[str] | None,
    key: str | None,
    *,
    replace_out: bool,
) -> tuple[_Weighted, AveragePlan]:
    weights = uniform_weights(len(paths)) if weights is None else weights
    if len(paths) != len(weights) or not paths:
        raise ValueError(f"weights must have one number per checkpoint; got {len(weights)} for {len(paths)}.")
    if not all(weight >= 0 for weight in weights) or not math.isclose(math.fsum(weights), 1.0, abs_tol=1e-9):
        raise ValueError(f"weights must be 0 or more, with sum 1; got {list(weights)}. See normalized_weights.")
    weighted = [
        (open_checkpoint(Path(path), key), weight) for path, weight in zip(paths, weights, strict=True) if weight
    ]
    last = weighted[-1][0]
    specs = last.specs
    in_memory = [checkpoint for checkpoint, _ in weighted if any(file.in_memory for file in checkpoint.files.values())]
    for checkpoint, _ in weighted[:-1]:
        _check_match(checkpoint, last)
    if out is not None:
        check_output_path(Path(out), last, [Path(path) for path in paths], replace=replace_out)
    averaged = [name for name, spec in specs.items() if spec.is_continuous and not _is_exact(name, specs)]
    return weighted, AveragePlan(
        checkpoints=tuple((checkpoint.path, weight) for checkpoint, weight in weighted),
        averaged=tuple(averaged),
        copied=tuple(name for name in specs if name not in frozenset(averaged)),
        nbytes=sum(spec.nbytes for spec in specs.values()),
        batchnorm=tuple(name for name in averaged if name.rpartition(".")[2] in ("running_mean", "running_var")),
        key=next(iter(last.files.values())).key,
        others=tuple(key for file in last.files.values() if isinstance(file, TorchFile) for key in file.others),
        in_memory=tuple(checkpoint.path for checkpoint in in_memory),
        memory=MEMORY + sum(spec.nbytes for checkpoint in in_memory for spec in checkpoint.specs.values()),
    )


def _check_match(checkpoint: Checkpoint, last: Checkpoint) -> None:
    problem = f"{checkpoint.path} does not match {last.path}"
    for name, spec in last.specs.items():
        if name not in checkpoint.specs:
            raise ValueError(f"{problem}: only the latter has tensor {name!r}.")
        if checkpoint.specs[name] != spec:
            raise ValueError(
                f"{problem}: tensor {name!r} is {checkpoint.specs[name]} in the former and {spec} in the latter."
            )
    for name in checkpoint.specs:
        if name not in last.specs:
            raise ValueError(f"{problem}: only the former has tensor {name!r}.")


def _is_exact(name: str, specs: dict[str, Spec]) -> bool:
    """Whether a tensor is a vector of spectral norm: it belongs to one matrix, so a mean is the vector of none."""
    if not name.endswith(("_u", "_v")):
        return False
    module, _, attribute = f".{name}".rpartition(".")
    is_parametrization = ".parametrizations." in module and attribute in ("_u", "_v")
    return is_parametrization or (f"{name[:-1]}orig" in specs and f"{name[:-1]}u" in specs)


def _aliases(weighted: _Weighted) -> dict[str, str]:
    """From the name of a tensor to an earlier name of the same tensor, if they are the same in every checkpoint."""
    first_names: dict[tuple[object, ...], str] = {}
    aliases: dict[str, str] = {}
    for name in weighted[-1][0].specs:
        first = first_names.setdefault(tuple(checkpoint.storage_key(name) for checkpoint, _ in weighted), name)
        if first != name:
            aliases[name] = first
    return aliases


class _Mean:
    """The weighted mean of a chunk. It is valid until the next one: allocating memory takes longer than the sums."""

    def __init__(self, weighted: _Weighted) -> None:
        self._weighted = weighted
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def __call__(self, name: str, chunk: Chunk) -> Tensor:
        values = self._weighted[-1][0].read(name, chunk)
        wide = torch.complex128 if values.is_complex() else torch.float64
        if values.dtype == wide:
            return _exact_mean(name, chunk, self._weighted)
        # The rounding of these sums is below half a digit of the result, so elements that are equal keep their bits,
        # and -0.0 too, because the sums begin with it.
        total, term = self._buffer("total", wide, len(values)).fill_(-0.0), self._buffer("term", wide, len(values))
        for checkpoint, weight in self._weighted:
            total.add_(term.copy_(checkpoint.read(name, chunk)), alpha=weight)
        if not math.isfinite(total.sum().abs()):
            return _exact_mean(name, chunk, self._weighted)
        return self._buffer("rounded", values.dtype, len(values)).copy_(total)

    def _buffer(self, use: str, dtype: torch.dtype, size: int) -> Tensor:
        buffer = self._buffers.get((use, dtype))
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[use, dtype] = torch.empty(size, dtype=dtype, device="cpu")
        return buffer[:size]


def _exact_mean(name: str, chunk: Chunk, weighted: _Weighted) -> Tensor:
    """The last checkpoint plus weighted differences from it.

    So elements that are equal in all checkpoints keep their bits, and may be infinite, as in an attention mask.
    """
    *others, (last, _) = weighted
    values = last.read(name, chunk)
    base = values.to(torch.complex128 if values.is_complex() else torch.float64)
    total = base.clone()
    for checkpoint, weight in others:
        difference = checkpoint.read(name, chunk).to(base.dtype, copy=True)
        is_equal = difference == base
        total.add_(difference.sub_(base).masked_fill_(is_equal, -0.0), alpha=weight)
    nonfinite = ~total.isfinite()
    if nonfinite.any() and not total[nonfinite].equal(base[nonfinite]):
        raise ValueError(_nonfinite_error(name, chunk, weighted))
    return total.to(values.dtype)


def _nonfinite_error(name: str, chunk: Chunk, weighted: _Weighted) -> str:
    for checkpoint, _ in weighted:
        if not checkpoint.read(name, chunk).to(torch.complex128).isfinite().all():
            return f"{checkpoint.path} has NaN or infinite values in {name!r}; leave that checkpoint out."
    return f"The average of {name!r} overflows its dtype."


def _differs(name: str, chunk: Chunk, weighted: _Weighted) -> bool:
    """Whether a copied tensor differs between checkpoints; vectors of spectral norm and batch counts always do."""
    *others, (last, _) = weighted
    values = last.read(name, chunk)
    if last.specs[name].is_continuous or name.rpartition(".")[2] == "num_batches_tracked":
        return False
    return any(not torch.equal(checkpoint.read(name, chunk), values) for checkpoint, _ in others)


# Which checkpoints, in which order -----------------------------------------------------------------------------------

_VERSION = re.compile(r"-v[0-9]+(?=\.[a-z]|$)")  # of Lightning, in a second run: epoch=3-v1.ckpt, last-v1.ckpt


@dataclass(frozen=True)
class CheckpointList:
    """Checkpoints to average.

    Args:
        checkpoints: their paths, in order.
        skipped: checkpoints of a folder whose position in the order is unknown.
    """

    checkpoints: tuple[Path, ...]
    skipped: tuple[Path, ...] = ()


def find_checkpoints(paths: Sequence[Path]) -> CheckpointList:
    """List the checkpoints in files and folders.

    Files, and folders that are a checkpoint, keep their order. A folder of checkpoints means all of them, sorted
    by the numbers in their names; if some have a number, those without one (`last.ckpt`) are skipped.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("step-20.pt", "step-100.pt", "last.pt"):
    ...         Path(folder, name).touch()
    ...     listed = find_checkpoints([Path(folder)])
    >>> [path.name for path in listed.checkpoints], [path.name for path in listed.skipped]
    (['step-20.pt', 'step-100.pt'], ['last.pt'])
    """
    checkpoints: list[Path] = []
    skipped: list[Path] = []
    for path in paths:
        if path.is_dir():
            numbered, others = _list_folder(path)
            checkpoints += numbered
            skipped += others
        elif path.exists():
            checkpoints.append(path)
        else:
            raise FileNotFoundError(2, "No such checkpoint", str(path))
    real_paths = [path.resolve() for path in checkpoints]
    for path, real_path in zip(checkpoints, real_paths, strict=True):
        if real_paths.count(real_path) > 1:
            raise ValueError(f"{path} is named more than once; use weights to count a checkpoint more than others.")
    return CheckpointList(tuple(checkpoints), tuple(skipped))


def sort_checkpoints(paths: Iterable[Path]) -> list[Path]:
    """Sort paths by the numbers in them: checkpoint-900 before checkpoint-1000.

    >>> [path.name for path in sort_checkpoints([Path("checkpoint-1000"), Path("checkpoint-900")])]
    ['checkpoint-900', 'checkpoint-1000']
    """
    return sorted(paths, key=_natural_key)


def _natural_key(path: Path) -> tuple[list[tuple[str, int]], str]:
    parts = [*re.split(r"([0-9]+)", path.as_posix()), "0"]
    return [(text, int(number)) for text, number in zip(parts[::2], parts[1::2], strict=True)], path.as_posix()


def _list_folder(folder: Path) -> tuple[list[Path], list[Path]]:
    """The checkpoints of a folder, sorted, and those that are skipped."""
    is_checkpoint = weights_file(folder) is not None
    folders = [path for path in folder.iterdir() if path.is_dir() and path.name[0] != "." and weights_file(path)]
    files = [path for path in folder.iterdir() if is_weights_file(path) and path.is_file()]
    if folders and (is_checkpoint or files):
        raise ValueError(
            f"{folder} holds a checkpoint and folders with others, such as {sort_checkpoints(folders)[0].name}; "
            "name the ones you mean."
        )
    if is_checkpoint:
        return [folder], []
    paths = sort_checkpoints(folders or files)
    if not paths:
        raise ValueError(f"{folder} holds no checkpoint: neither a file of weights nor a folder with one.")
    numbered = [path for path in paths if re.search(r"[0-9]", _VERSION.sub("", path.name))]
    if len(numbered) < 2:
        return paths, []
    return numbered, [path for path in paths if path not in numbered]


def checkpoint_step(path: Path) -> int:
    """The step of a checkpoint, from its name: the number after "step", or else the last whole number.

    >>> checkpoint_step(Path("epoch=3-step=1200.ckpt")), checkpoint_step(Path("checkpoint-500"))
    (1200, 500)
    """
    name = _VERSION.sub("", path.name.lower()).removesuffix(suffix_of(path))
    whole_numbers = r"(?<!\d)(?<!\d\.)\d+(?!\.?\d)"  # not the digits of 0.91
    numbers = re.findall(r"step\D?(\d+)", name)[:1] or re.findall(whole_numbers, name)
    if not numbers:
        raise ValueError(f"{path} must have its step in its name, as in step-500.pt, to be merged like a decay.")
    return int(numbers[-1])


def recent_checkpoints(paths: Sequence[Path], window: int | None = None, min_interval: int = 1) -> list[Path]:
    """The checkpoints of the last `window` steps, `min_interval` steps apart or more, in the order of their steps.

    >>> paths = [Path(f"step-{step}.pt") for step in (100, 200, 300, 310, 400)]
    >>> [path.name for path in recent_checkpoints(paths, window=200, min_interval=50)]
    ['step-200.pt', 'step-310.pt', 'step-400.pt']
    """
    by_step = {checkpoint_step(path): path for path in paths}
    if len(by_step) < len(paths):
        raise ValueError(f"checkpoints must have different steps in their names; got {', '.join(map(str, paths))}.")
    chosen: list[int] = []
    for step in sorted(by_step, reverse=True):
        if window is not None and step < max(by_step) - window:
            break
        if not chosen or chosen[-1] - step >= min_interval:
            chosen.append(step)
    return [by_step[step] for step in reversed(chosen)]


def best_checkpoints(paths: Sequence[Path], count: int, metric: str, *, lowest: bool = False) -> list[Path]:
    """The `count` checkpoints with the highest (or lowest) metric, in their order.

    The metric is a number in the name (`val_acc=0.91`) or in a file of torch.save, as timm writes it (`metric`).
    """
    if not 1 <= count <= len(paths):
        raise ValueError(f"count must be from 1 to {len(paths)}, the number of checkpoints; got {count}.")
    values = [_metric_of(path, metric) * (-1 if lowest else 1) for path in paths]
    valid = sum(not math.isnan(value) for value in values)
    if valid < count:
        raise ValueError(f"count must be at most {valid}, the checkpoints whose {metric!r} is not NaN; got {count}.")
    ranked = sorted(range(len(paths)), key=lambda position: (math.isnan(values[position]), -values[position]))
    return [paths[position] for position in sorted(ranked[:count])]


def _metric_of(path: Path, metric: str) -> float:
    number = r"-?(?:\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|nan|inf)"
    named = re.findall(rf"(?<![A-Za-z0-9]){re.escape(metric)}=({number})", path.name)
    if len(named) > 1:
        raise ValueError(f"metric must be the whole name of a number in {path}; got {metric!r}, the end of several.")
    if named:
        return float(named[0])
    for file in open_checkpoint(path).files.values():
        value = file.number(metric) if isinstance(file, TorchFile) else None
        if value is not None:
            return value
    raise ValueError(f"{path} must have a number {metric!r}, in its name or in the file; choose another metric.")


def greedy_soup(
    checkpoints: Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    score: Callable[[Path], float],
    *,
    key: str | None = None,
    replace_out: bool = False,
    report: Callable[[Path, float, bool], None] | None = None,
) -> AveragePlan:
    """Write the mean of those checkpoints that improve it (Wortsman et al. 2022, "Model soups").

    The checkpoints are tried from best to worst, and one is added if the mean with it has a higher score.

    Args:
        checkpoints: as for `average_checkpoints`.
        out: where to write the mean.
        score: the score of a checkpoint on validation data, such as its accuracy; higher is better.
        key: as for `average_checkpoints`.
        replace_out: whether to replace an existing file or folder.
        report: called with each checkpoint, the score of the mean with it, and whether it was added.
    """
    paths, out = [Path(path) for path in checkpoints], Path(out)
    plan_average(paths, out=out, key=key, replace_out=replace_out)
    scores = {path: score(path) for path in paths}
    ranked = sorted(paths, key=lambda path: (math.isnan(scores[path]), -scores[path]))
    chosen, best = ranked[:1], scores[ranked[0]]
    if math.isnan(best):
        raise ValueError("score must be a number for one checkpoint at least; got NaN for all.")
    if report is not None:
        report(ranked[0], best, True)
    draft = out.with_name(f".{secrets.token_hex(8)}.{out.name}")
    try:
        for path in ranked[1:]:
            trial = [other for other in paths if other in (*chosen, path)]  # the last one decides what is copied
            average_checkpoints(trial, draft, key=key, replace_out=True)
            value = score(draft)
            if value > best:
                chosen, best = trial, value
            if report is not None:
                report(path, value, path in chosen)
    finally:
        if draft.is_dir():
            shutil.rmtree(draft)
        draft.unlink(missing_ok=True)
    return average_checkpoints(chosen, out, key=key, replace_out=replace_out)


# Weights -------------------------------------------------------------------------------------------------------------


def uniform_weights(count: int) -> list[float]:
    """The plain mean: a uniform soup, or stochastic weight averaging after the fact.

    >>> uniform_weights(4)
    [0.25, 0.25, 0.25, 0.25]
    """
    if count < 1:
        raise ValueError(f"count must be 1 or more checkpoints; got {count}.")
    return [1.0 / count] * count


def last_weights(count: int, last: int) -> list[float]:
    """The mean of the last `last` checkpoints (LAWA: Kaddour 2022, "Stop wasting my time! Saving days of ImageNet and
    BERT training with latest weight averaging").

    >>> last_weights(4, 2)
    [0.0, 0.0, 0.5, 0.5]
    """
    if not 1 <= last <= count:
        raise ValueError(f"last must be from 1 to {count}, the number of checkpoints; got {last}.")
    return [0.0] * (count - last) + uniform_weights(last)


def ema_weights(count: int, decay: float) -> list[float]:
    """A bias-corrected exponential moving average: a checkpoint counts `decay` times as much as the next one.

    The weights are (1 - α)·α^k for the checkpoint k before the last, divided by their sum. Without the correction the
    first of three checkpoints would get 81% at a decay of 0.9, as if all earlier ones had been equal to it.

    >>> [round(weight, 3) for weight in ema_weights(3, 0.9)]
    [0.299, 0.332, 0.369]
    """
    if not 0.0 <= decay < 1.0:
        raise ValueError(f"decay must be at least 0 and below 1, such as 0.9; got {decay}.")
    return normalized_weights(count, [decay ** (count - 1 - position) for position in range(count)])


def normalized_weights(count: int, weights: Sequence[float]) -> list[float]:
    """The weights divided by their sum.

    >>> normalized_weights(2, [3, 1])
    [0.75, 0.25]
    """
    if len(weights) != count:
        raise ValueError(f"weights must have one number per checkpoint; got {len(weights)} for {count}.")
    if not all(math.isfinite(weight) and weight >= 0.0 for weight in weights) or not any(weights):
        raise ValueError(f"weights must be finite, 0 or more, and not all 0; got {list(weights)}.")
    largest = max(weights)  # scale first: the sum of large weights may overflow
    scaled = [weight / largest for weight in weights]
    return [weight / math.fsum(scaled) for weight in scaled]
