"""For all tests: how Hypothesis behaves on a machine that is busy with something else."""

from hypothesis import HealthCheck, settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("emabank", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("emabank")
