"""For all tests: Hypothesis without deadlines, and a working Ctrl-C."""

import signal

from hypothesis import HealthCheck, settings

# How long an example takes depends on how busy the machine is.
settings.register_profile("emabank", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("emabank")

# A shell starts `make test &` with SIGINT ignored, and commands that a test interrupts would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
