"""Per-sample values of a criterion: compact copies, checks, and the paired test of a gain."""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from emabank.selection import Observation

Key = tuple[str, str, int]  # the criterion, the average and the epoch
PerSample = dict[Key, Tensor]

MIN_SAMPLES = 20  # for the normal approximation
_DRAWS = 2000  # of the bootstrap
_BLOCK = 2**24  # random numbers drawn at a time, 64 MiB


def compact(sequence: Any, what: str) -> Tensor:
    """A copy of per-sample values on the CPU: bool where every value is 0 or 1, else float32."""
    try:
        values = torch.as_tensor(sequence).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"per_sample must have one number per sample; got {sequence!r} for {what}.") from error
    if values.dim() != 1 or not len(values) or values.is_complex() or values.layout is not torch.strided:
        raise ValueError(
            f"per_sample must have one number per sample, a 1-D tensor; got {values.dtype} of shape "
            f"{tuple(values.shape)} for {what}."
        )
    is_binary = bool(((values == 0) | (values == 1)).all())
    return values.to(torch.bool if is_binary else torch.float32, copy=True)


def check_per_sample(new: PerSample, known: PerSample, rows: "Iterable[Observation]") -> PerSample:
    """The known and the new values; raise unless the new ones fit the rows and all have the same length.

    Values that are not finite are skipped, because their metric is never best.
    """
    metrics = {(row.metric, row.average, row.epoch): row.value for row in rows if row.complete}
    merged = dict(known)
    lengths = {criterion: len(values) for (criterion, _, _), values in known.items()}
    for key, values in new.items():
        criterion, average, _ = key
        if key not in metrics:
            raise ValueError(f"metrics must have {criterion!r} of {average!r}, because per_sample has it.")
        value, mean = metrics[key], float(values.double().mean())
        if math.isfinite(value) or math.isfinite(mean):
            if not math.isclose(value, mean, rel_tol=1e-4, abs_tol=1e-6):
                raise ValueError(
                    f"{criterion!r} of {average!r} must be the mean of its per-sample values, {mean:g}; got {value:g}. "
                    "Use the same unit and the same samples for both."
                )
            merged[key] = values
        if lengths.setdefault(criterion, len(values)) != len(values):
            raise ValueError(
                f"per_sample must have the same samples every time, {lengths[criterion]} of them; got {len(values)} "
                f"for {criterion!r} of {average!r}."
            )
    return merged


def paired_test(
    candidates: Sequence[Tensor], live: Tensor, *, chosen: int, better: Literal["max", "min"], level: float
) -> tuple[float, float] | None:
    """The standard error of the chosen candidate's gain over the live weights, and how many of these errors the gain
    must be, at this level, to be more than the luck of the best of all candidates. None with too few samples.

    White's "reality check" (2000), studentised: the quantile of the largest t over all candidates if none were better,
    by a Gaussian multiplier bootstrap, which accounts for their correlation. Candidates that are far worse are skipped
    (Hansen 2005).

    >>> generator = torch.Generator().manual_seed(0)
    >>> live, noise = torch.randn(2, 1000, generator=generator)
    >>> error, critical = paired_test([live + noise], live, chosen=0, better="max", level=0.05)
    >>> round(error, 3), round(critical, 1)
    (0.032, 1.7)
    """
    samples = len(live)
    if samples < MIN_SAMPLES:
        return None
    gains = torch.stack([values.float() for values in candidates]).sub_(live.float())
    gains = gains if better == "max" else gains.neg_()
    means = gains.mean(1)
    # Add two samples, one for and one against, with the largest difference observed: if few samples differ, their
    # variance alone may be too small by chance. Agresti and Min (2005) do so for shares.
    extremes = torch.maximum(gains.amax(1), -gains.amin(1))
    gains.sub_(means[:, None])
    lengths = torch.linalg.vector_norm(gains, dim=1)
    errors = torch.hypot(lengths, math.sqrt(2.0) * extremes) / math.sqrt(samples * (samples - 1))
    plausible = (lengths > 0.0) & (means >= -math.sqrt(2.0 * math.log(math.log(samples))) * errors)
    critical = NormalDist().inv_cdf(1.0 - level)  # of a single candidate
    if plausible.any():
        directions = gains[plausible].div_(lengths[plausible, None])
        # Whatever torch's default device and dtype are.
        draw = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float32, device="cpu")
        block = max(1, _BLOCK // samples)
        blocks = (min(block, _DRAWS - start) for start in range(0, _DRAWS, block))
        largest = torch.cat([(draw(size, samples) @ directions.T).amax(1) for size in blocks])
        critical = max(critical, float(largest.quantile(1.0 - level)))
    return float(errors[chosen]), critical
