"""emabank: keep a bank of weight averages while you train; know which one to ship.

The public names, nothing else. They resolve on first use, so that `emabank --help` and the report start without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from emabank.advice import Advice as Advice
    from emabank.bank import EMABank as EMABank
    from emabank.batchnorm import Recalibration as Recalibration
    from emabank.batchnorm import recalibrate_batchnorm as recalibrate_batchnorm
    from emabank.rules import EMA as EMA
    from emabank.rules import PowerEMA as PowerEMA
    from emabank.rules import Ramp as Ramp
    from emabank.rules import Uniform as Uniform
    from emabank.selection import Best as Best
    from emabank.selection import BestTracker as BestTracker

_HOME = {
    "EMA": "rules",
    "Uniform": "rules",
    "PowerEMA": "rules",
    "Ramp": "rules",
    "EMABank": "bank",
    "recalibrate_batchnorm": "batchnorm",
    "Recalibration": "batchnorm",
    "BestTracker": "selection",
    "Best": "selection",
    "Advice": "advice",
}

__all__ = list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'emabank' has no attribute {name!r}")
    value = getattr(import_module(f"emabank.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
