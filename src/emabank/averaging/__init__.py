"""Average checkpoints that are already on disk: what the command `emabank average` calls.

torch is the only requirement, for safetensors files too.
"""

from emabank.averaging.average import (
    AveragePlan,
    CheckpointList,
    average_checkpoints,
    ema_weights,
    find_checkpoints,
    last_weights,
    normalized_weights,
    plan_average,
    sort_checkpoints,
    uniform_weights,
)

__all__ = [
    "AveragePlan",
    "CheckpointList",
    "average_checkpoints",
    "ema_weights",
    "find_checkpoints",
    "last_weights",
    "normalized_weights",
    "plan_average",
    "sort_checkpoints",
    "uniform_weights",
]
