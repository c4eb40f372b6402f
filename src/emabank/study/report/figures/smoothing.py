"""The sliding window of the paper's curves. For figures only: no number of a table or a claim goes through it."""

import numpy as np
from numpy.typing import ArrayLike

from emabank.study.metrics.inputs import Floats

WINDOW = 5
"""Epochs, as in the paper's captions."""


def smooth(curves: ArrayLike, *, window: int = WINDOW) -> Floats:
    """The mean over a window centred on each epoch, along the last axis; NaN within the window is passed over.

    Towards the ends the window shrinks on both sides, so that it stays centred and the first and last values are those
    measured. Where nothing was measured (NaN), nothing is made up.

    >>> smooth([0.0, 3.0, 6.0, 0.0, 6.0, 3.0]).tolist()
    [0.0, 3.0, 3.0, 3.6, 3.0, 3.0]
    >>> smooth([1.0, np.nan, 4.0], window=3).tolist()
    [1.0, nan, 4.0]
    """
    if window < 1 or window % 2 == 0:
        raise ValueError(f"window is {window}; give an odd number of epochs, so that the window has a middle")
    values = np.asarray(curves, dtype=np.float64)
    measured = np.isfinite(values)
    filled = np.where(measured, values, 0.0)
    epochs = values.shape[-1]
    smoothed = np.full(values.shape, np.nan)
    for epoch in range(epochs):
        reach = min(window // 2, epoch, epochs - 1 - epoch)
        around = slice(epoch - reach, epoch + reach + 1)
        sums, counts = filled[..., around].sum(axis=-1), measured[..., around].sum(axis=-1)
        np.divide(sums, counts, out=smoothed[..., epoch], where=measured[..., epoch])
    return smoothed
