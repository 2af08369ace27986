"""Settings for all tests."""

import os

from hypothesis import HealthCheck, settings

# Examples are the same in every run, so a failure on one machine is a failure on all. To search
# for new ones: HYPOTHESIS_PROFILE=explore. No deadlines: a busy machine must not fail a test.
_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
settings.register_profile("default", derandomize=True, **_common)
settings.register_profile("explore", max_examples=2_000, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
