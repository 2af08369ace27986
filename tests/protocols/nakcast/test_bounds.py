"""Bounds of nakcast that `test_steps.py` does not cover: at each bound, and one step beyond it."""

from typing import Any

import pytest

from surecast.errors import ConfigError
from surecast.protocols.nakcast.config import IDLE_BEACON_NS_MAX, NakcastConfig
from surecast.protocols.nakcast.role import NAMED_MAX, NakcastObserver
from tests.edits import Check, Edit, Row, each_check, must_fail
from tests.protocols.nakcast.stage import INFO, OTHER_INFO, Log, server


def time_between_beacons() -> None:
    NakcastConfig("east", idle_beacon_ns=IDLE_BEACON_NS_MAX).validate()
    with pytest.raises(
        ConfigError, match=f"to {IDLE_BEACON_NS_MAX}: readers leave a silent server"
    ):
        NakcastConfig("east", idle_beacon_ns=IDLE_BEACON_NS_MAX + 1).validate()


class ManyStreams(Log):
    @property
    def streams(self) -> dict[bytes, Any]:
        one = super().streams[INFO.stream_id]
        return {**super().streams, **{bytes([n]) * 16: one for n in range(NAMED_MAX)}}


def streams_in_alarms() -> None:
    layers = server(ManyStreams()).layers
    losing, observer = layers["nakcast"].losing, NakcastObserver()
    losing.update({bytes([n]) * 16: 7 for n in range(NAMED_MAX)})
    named = [("readers-losing", f"{INFO.name}, 7 positions")] * NAMED_MAX
    assert list(observer.alarms(layers)) == named
    losing[OTHER_INFO.stream_id] = 7
    assert list(observer.alarms(layers)) == [*named, ("readers-losing", "and 1 more")]


CHECKS: list[Row] = [
    (
        time_between_beacons,
        Edit(
            "surecast.protocols.nakcast.config:NakcastConfig.validate",
            "self.idle_beacon_ns <= IDLE_BEACON_NS_MAX",
            "self.idle_beacon_ns",
        ),
    ),
    (
        streams_in_alarms,
        Edit(
            "surecast.protocols.nakcast.role:NakcastObserver.alarms", "losing[:NAMED_MAX]", "losing"
        ),
    ),
]


@each_check(CHECKS)
def test_bound_holds(check: Check, edit: Edit) -> None:
    check()


@each_check(CHECKS)
def test_a_missing_bound_is_noticed(check: Check, edit: Edit) -> None:
    must_fail(check, edit)
