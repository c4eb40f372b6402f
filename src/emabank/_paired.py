"""Values sample by sample: checked and kept compactly, and the test of a gain that was chosen by them.

May import observed and torch.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from emabank.selection import Observation

Key = tuple[str, str, int]  # the criterion, the average and the epoch
PerSample = dict[Key, Tensor]

FEWEST = 20  # samples, below which the normal approximation is not to be trusted
_DRAWS = 2000
_BLOCK = 2**24  # random numbers made at a time, 64 MiB


def read_per_sample(
    per_sample: Mapping[Any, Any], criteria: Sequence[str], epoch: int, resolve: Callable[[Any], str]
) -> PerSample:
    """The per-sample values of one validation, of the criteria alone.

    >>> per_sample = {"live": [0, 1, 1], "slow": {"accuracy": torch.ones(3), "f1": torch.ones(3)}}
    >>> sorted(read_per_sample(per_sample, ["accuracy"], epoch=7, resolve=str))
    [('accuracy', 'live', 7), ('accuracy', 'slow', 7)]
    """
    values: PerSample = {}
    for key, entry in per_sample.items():
        average = resolve(key)
        by_metric: Mapping[str, Any] = entry if isinstance(entry, Mapping) else {criteria[0]: entry}
        for metric in by_metric:
            if metric in criteria:
                values[metric, average, epoch] = _compact(by_metric[metric], f"{metric!r} of {average!r}")
    return values


def _compact(sequence: Any, what: str) -> Tensor:
    """A copy on the CPU: bool where every value is 0 or 1, else float32."""
    try:
        values = torch.as_tensor(sequence).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"per_sample must have numbers, one per sample; got {sequence!r} as {what}.") from error
    if values.dim() != 1 or not len(values) or values.is_complex():
        raise ValueError(
            f"per_sample must have one number per sample, a 1-D tensor; got {tuple(values.shape)} {values.dtype} as "
            f"{what}."
        )
    is_binary = bool(((values == 0) | (values == 1)).all())
    return values.to(torch.bool if is_binary else torch.float32, copy=True)


def check_per_sample(fresh: PerSample, known: PerSample, rows: "Iterable[Observation]") -> PerSample:
    """The known and the fresh values together; raises unless the fresh ones fit the rows, and all have one length.

    Values that are not finite are left out, as their metric is never best either.
    """
    metrics = {(row.metric, row.average, row.epoch): row.value for row in rows if row.complete}
    together = dict(known)
    lengths = {criterion: len(values) for (criterion, _, _), values in known.items()}
    for key, values in fresh.items():
        criterion, average, _ = key
        if key not in metrics:
            raise ValueError(f"per_sample has {criterion!r} of {average!r}, and metrics have not; give both.")
        value, mean = metrics[key], float(values.double().mean())
        if math.isfinite(value) or math.isfinite(mean):
            if not math.isclose(value, mean, rel_tol=1e-4, abs_tol=1e-6):
                raise ValueError(
                    f"{criterion!r} of {average!r} must be the mean of its per-sample values; got {value:g}, and "
                    f"{mean:g} as their mean. Give both in the same unit, over the same samples."
                )
            together[key] = values
        if lengths.setdefault(criterion, len(values)) != len(values):
            raise ValueError(
                f"per_sample must have the same samples every time; got {len(values)} values as {criterion!r} of "
                f"{average!r}, and {lengths[criterion]} before."
            )
    return together


def saved_per_sample(saved: Iterable[Mapping[str, Any]], rows: "Iterable[Observation]") -> PerSample:
    """The values of a saved state; `TypeError`, `KeyError` or `ValueError` where they are not as they were saved.

    >>> from emabank.selection import Observation
    >>> saved = [{"criterion": "loss", "average": "live", "epoch": 1, "values": torch.tensor([0.25, 0.75])}]
    >>> saved_per_sample(saved, [Observation(1, "live", "loss", 0.5, True)])
    {('loss', 'live', 1): tensor([0.2500, 0.7500])}
    """
    values: PerSample = {}
    for item in saved:
        tensor = item["values"]
        is_plain = isinstance(tensor, Tensor) and tensor.layout is torch.strided and not tensor.is_meta
        if not is_plain or tensor.dim() != 1 or tensor.dtype not in (torch.bool, torch.float32):
            raise TypeError("its per-sample values are not 1-D tensors of bool or float32")
        values[item["criterion"], item["average"], item["epoch"]] = tensor.cpu().clone()
    return check_per_sample(values, {}, rows)


def split_per_sample(metrics: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metrics as numbers, and the per-sample values among them: 1-D tensors of several elements, whose mean it is.

    >>> split_per_sample({"accuracy": torch.tensor([1, 0, 1, 1]), "loss": 0.5})
    ({'accuracy': 0.75, 'loss': 0.5}, {'accuracy': tensor([1, 0, 1, 1])})
    """
    if not isinstance(metrics, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"fn must return its metrics, such as {{'accuracy': 0.9}}; got {metrics!r}.")
    several = {
        name: value
        for name, value in metrics.items()
        if isinstance(value, Tensor) and value.dim() == 1 and value.numel() > 1
    }
    means = {name: float(values.double().mean()) for name, values in several.items()}
    return {**metrics, **means}, several


def paired_test(
    candidates: Sequence[Tensor], live: Tensor, *, chosen: int, better: Literal["max", "min"], level: float
) -> tuple[float, float] | None:
    """The standard error of the chosen candidate's gain over the live weights, and the critical value: how many of
    these errors a gain must be, at this level, before it is more than the luck of the best of all candidates.

    White's "reality check" (2000), studentised: the quantile of the largest t of all candidates if none were better, by
    a Gaussian multiplier bootstrap, which sees how alike they are. Those that are far worse have no say (Hansen 2005).
    None with too few samples.

    >>> generator = torch.Generator().manual_seed(0)
    >>> live, noise = torch.randn(2, 1000, generator=generator)
    >>> error, critical = paired_test([live + noise], live, chosen=0, better="max", level=0.05)
    >>> round(error, 3), round(critical, 1)
    (0.032, 1.7)
    """
    samples = len(live)
    if samples < FEWEST:
        return None
    gains = torch.stack([values.float() for values in candidates]).sub_(live.float())
    gains = gains if better == "max" else gains.neg_()
    means = gains.mean(1)
    # Two more samples, one for and one against, with the largest difference there is: where few samples differ, their
    # variance alone is too small by chance. Agresti and Min (2005) do so for shares.
    extremes = torch.maximum(gains.amax(1), -gains.amin(1))
    gains.sub_(means[:, None])
    lengths = torch.linalg.vector_norm(gains, dim=1)
    errors = torch.hypot(lengths, math.sqrt(2.0) * extremes) / math.sqrt(samples * (samples - 1))
    in_question = (lengths > 0.0) & (means >= -math.sqrt(2.0 * math.log(math.log(samples))) * errors)
    critical = NormalDist().inv_cdf(1.0 - level)  # of a single candidate
    if in_question.any():
        directions = gains[in_question].div_(lengths[in_question, None])
        generator = torch.Generator().manual_seed(0)
        block = max(1, _BLOCK // samples)
        largest = torch.cat([
            (torch.randn(min(block, _DRAWS - start), samples, generator=generator) @ directions.T).amax(1)
            for start in range(0, _DRAWS, block)
        ])  # fmt: skip
        critical = max(critical, float(largest.quantile(1.0 - level)))
    return float(errors[chosen]), critical
