"""Settings of hypothesis for all tests.

`tests/conftest.py` does not import hypothesis, since the small sessions of test_build_test.py do not need it.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def load_profile() -> None:
    """Let examples take any time: a busy machine is not a failure."""
    settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("steady")
