"""The options of a client: durations at their bounds."""

from datetime import timedelta

import pytest

from surecast.endpoint.options import DURATION_S_MAX, ClientOptions
from surecast.errors import ConfigError


@pytest.mark.parametrize("most", [DURATION_S_MAX, timedelta(seconds=DURATION_S_MAX)])
def test_a_duration_beyond_the_longest_is_refused(most: float | timedelta) -> None:
    assert ClientOptions(owner_timeout=most).owner_timeout_ns == DURATION_S_MAX * 10**9
    longer = most + (timedelta(microseconds=1) if isinstance(most, timedelta) else 1)
    with pytest.raises(ConfigError, match="owner_timeout"):
        ClientOptions(owner_timeout=longer)
