"""Average checkpoints that are already on disk: what the command `emabank average` calls.

torch is the only requirement, for safetensors files too.
"""

from emabank.averaging.average import (
    AveragePlan,
    CheckpointList,
    average_checkpoints,
    best_checkpoints,
    checkpoint_step,
    ema_weights,
    find_checkpoints,
    greedy_soup,
    last_weights,
    normalized_weights,
    plan_average,
    recent_checkpoints,
    sort_checkpoints,
    uniform_weights,
)

__all__ = [
    "AveragePlan",
    "CheckpointList",
    "average_checkpoints",
    "best_checkpoints",
    "checkpoint_step",
    "ema_weights",
    "find_checkpoints",
    "greedy_soup",
    "last_weights",
    "normalized_weights",
    "plan_average",
    "recent_checkpoints",
    "sort_checkpoints",
    "uniform_weights",
]
