"""Hypothesis draws the same examples every time and does not mind a busy machine."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "kvsim", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("kvsim")
