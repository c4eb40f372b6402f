"""Every figure that the evidence bears, scale by scale."""

from collections.abc import Callable

from emabank.study.report.evidence import Evidence
from emabank.study.report.figures import (
    batchnorm,
    calibration,
    dynamics,
    label_noise,
    lr_search,
    posthoc,
    sampling_period,
    training,
)
from emabank.study.report.pairs import Scale
from emabank.study.report.panel import Figure

MAKERS: tuple[Callable[[Evidence, Scale], list[Figure]], ...] = (
    dynamics.dynamics,
    dynamics.early,
    batchnorm.decays,
    batchnorm.heatmap,
    label_noise.accuracy,
    label_noise.memorisation,
    training.constant_rate,
    calibration.reliability,
    training.step_decay,
    training.bootstrap,
    lr_search.lr_search,
    sampling_period.sampling_period,
    posthoc.heatmap,
)


def figures(evidence: Evidence) -> list[Figure]:
    """All figures, the largest scale first; one whose evidence is not there is not made.

    >>> figures(Evidence())
    []
    """
    return [figure for scale in evidence.scales for make in MAKERS for figure in make(evidence, scale)]
