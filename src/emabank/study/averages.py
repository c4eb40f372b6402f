"""Which averages a run has, and which of them make the columns of its tables. May import config and the library."""

from emabank import EMA
from emabank.study.config import Keep
from emabank.study.recipe import AveragesConfig
from emabank.study.rows import BatchNorm


def rules(averages: AveragesConfig, steps: int) -> dict[str, EMA]:
    """The averages of a run of so many steps by name.

    >>> [round(rule.half_life or 0, 1) for rule in rules(AveragesConfig(), 660).values()]
    [2.9, 5.8, 11.9, 23.1, 46.9]
    """
    warmup = None if averages.decay_warmup == "none" else averages.decay_warmup
    if averages.decays:
        made = [EMA(decay, warmup=warmup) for decay in sorted(averages.decays)]
    else:
        made = [EMA(half_life=share / 100 * steps, warmup=warmup) for share in sorted(averages.half_lives)]
    return dict(zip(averages.names, made, strict=True))


def columns(
    averages: AveragesConfig, average: str, epoch: int, criterion: str, has_batchnorm: bool
) -> tuple[Keep, Keep]:
    """The two columns that a criterion gives: the average it chose, and the slowest at the same epoch, recomputed.

    >>> [keep.name for keep in columns(AveragesConfig(), "ema-1.8%", 9, "loss", True)]
    ['ema-1.8%-loss', 'ema-7.1%-recomputed-loss']
    """
    chosen = Keep(weights=average, epoch=epoch, batchnorm="averaged", selected_by=criterion)  # type: ignore[arg-type]
    statistics: BatchNorm = "recomputed" if has_batchnorm else "averaged"
    slowest = Keep(weights=averages.names[-1], epoch=epoch, batchnorm=statistics, selected_by=criterion)  # type: ignore[arg-type]
    return chosen, slowest
