"""For all tests: how Hypothesis behaves on a busy machine, that Ctrl-C is heard, and where snapshots are kept."""

import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("emabank", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("emabank")

# A shell starts `make test &` with SIGINT ignored, and so would be every command that a test interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["memory", "disk"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Where a BestTracker keeps its snapshots, as arguments of it."""
    return {} if request.param == "memory" else {"folder": tmp_path / "snapshots"}
