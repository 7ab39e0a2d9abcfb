"""Shared by the unit tests: what is drawn may take its time, and is the same in every run."""

import os

from hypothesis import HealthCheck, settings

# A test that has to wait for a core has not failed.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# What one commit draws, the next draws too: a rare input fails the commit that meets it first, not one at random.
settings.register_profile("repeatable", PATIENT, derandomize=True)
# At night: other inputs every time, and more of them.
settings.register_profile("search", PATIENT, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
