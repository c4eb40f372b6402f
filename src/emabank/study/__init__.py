"""The study: the paper's protocol from data to report. Needs the extra `study`.

It uses the public names of the library only, and the library never imports it. Its own public names resolve on first
use, so that reading results loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emabank.study.api import run_protocol as run_protocol
    from emabank.study.config import AveragesConfig as AveragesConfig
    from emabank.study.config import DataConfig as DataConfig
    from emabank.study.config import HardwareConfig as HardwareConfig
    from emabank.study.config import MeasuringConfig as MeasuringConfig
    from emabank.study.config import ProtocolConfig as ProtocolConfig
    from emabank.study.config import TrainingConfig as TrainingConfig
    from emabank.study.runs.archive import load_results as load_results

__all__ = [
    "AveragesConfig",
    "DataConfig",
    "HardwareConfig",
    "MeasuringConfig",
    "ProtocolConfig",
    "TrainingConfig",
    "load_results",
    "run_protocol",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'emabank.study' has no attribute {name!r}")
    home = {"load_results": "runs.archive", "run_protocol": "api"}.get(name, "config")
    value = getattr(import_module(f"emabank.study.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
