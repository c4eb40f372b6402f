"""Checkpoints that exist already, averaged into one: read and written piece by piece, in the layout they came in.

The public names, nothing else. `average_checkpoints` is what the command `emabank average` calls; torch is enough for
it, also for safetensors files.
"""

from emabank.averaging.average import (
    Fit,
    Found,
    average_checkpoints,
    ema_shares,
    find_checkpoints,
    fit_together,
    given_shares,
    in_order,
    last_shares,
    uniform_shares,
)

__all__ = [
    "Fit",
    "Found",
    "average_checkpoints",
    "ema_shares",
    "find_checkpoints",
    "fit_together",
    "given_shares",
    "in_order",
    "last_shares",
    "uniform_shares",
]
