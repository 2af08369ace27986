"""Which alarms a server process logs, and when it logs that they are over."""

from surecast.server.alarms import Alarm
from surecast.server.process import CHECKS_BEFORE_LOG, AlarmLog


def alarm(code: str, what: str) -> Alarm:
    return Alarm(code=code, what=what, means="m", todo="t", blocks=False)


def logged(checks: list[list[Alarm]]) -> list[tuple[list[str], list[str]]]:
    """Of each check: the codes that are over, and the texts of the alarms that are logged."""
    log = AlarmLog()
    found = []
    for alarms in checks:
        over, lasting = log.check(alarms)
        found.append((over, [one.what for one in lasting]))
    return found


LONG = CHECKS_BEFORE_LOG
NOTHING: tuple[list[str], list[str]] = ([], [])


def test_an_alarm_is_logged_when_it_lasts_and_when_it_is_over() -> None:
    raised = [alarm("replicas-missing", "b, since 3 s")]
    later = [alarm("replicas-missing", "b, since 4 s")]
    assert logged([raised] * (LONG - 1) + [later] * 3 + [[], []]) == [
        *[NOTHING] * (LONG - 1), ([], ["b, since 4 s"]), NOTHING, NOTHING,
        (["replicas-missing"], []), NOTHING,
    ]  # fmt: skip


def test_a_short_alarm_is_not_logged() -> None:
    assert logged([[alarm("a", "x")]] * (LONG - 1) + [[]] * LONG) == [NOTHING] * (2 * LONG - 1)


def test_an_alarm_whose_text_changes_before_it_ends_is_over() -> None:
    """The last text was not logged, because it did not last."""
    first, second = [alarm("not-in-chain", "epoch 6")], [alarm("not-in-chain", "epoch 7")]
    found = logged([first] * LONG + [second] + [[]])
    assert found[-3:] == [([], ["epoch 6"]), NOTHING, (["not-in-chain"], [])]


def test_an_alarm_is_over_only_when_no_other_has_its_code() -> None:
    south, west = alarm("region-unreachable", "south"), alarm("region-unreachable", "west")
    found = logged([[south]] * LONG + [[west]] * LONG + [[]])
    assert [over for over, _ in found] == [[]] * (2 * LONG) + [["region-unreachable"]]
    assert [what for _, what in found if what] == [["south"], ["west"]]


def test_a_region_without_a_disk_is_not_logged_again() -> None:
    assert logged([[alarm("in-memory", "x")]] * (2 * LONG) + [[]]) == [NOTHING] * (2 * LONG + 1)
