"""`surecast where`: checks filters and explains them."""

import json

import pytest
from typer.testing import CliRunner, Result

from surecast.cli.main import app
from surecast.errors import UsageError

SCHEMA = "sym string, qty int64, day date, raw binary, px float64, at timestamp(s), single float32"


def where(*words: str) -> Result:
    return CliRunner().invoke(app, ["where", *words, "--schema", SCHEMA])


def test_a_filter_is_shown_as_it_is_evaluated() -> None:
    done = where("check", 'sym=="IBM" and qty > 100.5')
    assert done.exit_code == 0
    assert done.stdout == "sym == 'IBM' and qty > 100.5\nsym == 'IBM' and qty >= 101\n"
    found = json.loads(where("check", "not exists qty", "--json").stdout)
    assert found == {"filter": "not exists qty", "evaluated": "not exists qty"}


def test_a_filter_of_events_without_a_schema() -> None:
    done = CliRunner().invoke(app, ["where", "check", "key startswith 'user:'"])
    assert done.stdout.splitlines()[1] == "key startswith b'user:'"


def test_a_mistake_is_shown_in_the_filter() -> None:
    done = where("check", "qty > 1 and sim == 'x'")
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == (
        "there is no column 'sim' that filters can test; did you mean 'sym'? (at character 13 of "
        "the filter)\n  qty > 1 and sim == 'x'\n              ^"
    )


def test_events_are_explained_test_by_test() -> None:
    events = [
        '{"sym": "IBM", "qty": 101, "raw": "x", "day": "2026-11-19"}',
        '{"sym": null, "px": 1}',
    ]
    filter_ = "sym == 'IBM' and (qty > 100.5 or day == '2026-11-20') and raw == b'x'"
    done = where("explain", filter_, *events)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "event 1 passes",
        "  true   sym == 'IBM'",
        "  true   qty >= 101",
        "  false  day == '2026-11-20'",
        "  true   raw == b'x'",
        "event 2 does not pass",
        "  false  sym == 'IBM' (sym has no value)",
        "  false  qty >= 101 (qty has no value)",
        "  false  day == '2026-11-20' (day has no value)",
        "  false  raw == b'x' (raw has no value)",
    ]
    lines = where("explain", filter_, *events, "--json").stdout.splitlines()
    assert [json.loads(line)["passes"] for line in lines] == [True, False]
    assert json.loads(lines[0])["tests"][1] == ["qty >= 101", True]


@pytest.mark.parametrize(
    ("event", "part"),
    [
        ("{", "event 1 is not JSON"),
        ("[1]", "event 1 is not a JSON object"),
        ('{"other": 1}', "event 1 has 'other', which --schema does not declare"),
        ('{"qty": "1"}', 'event 1: qty is int64, not "1"'),
        ('{"qty": 1.5}', "event 1: qty is int64, not 1.5"),
        ('{"qty": true}', "event 1: qty is int64, not true"),
        ('{"qty": 9223372036854775808}', "event 1: qty is int64"),
        ('{"day": "x"}', "event 1: day is a date"),
        ('{"sym": 1}', "event 1: sym is string"),
        ('{"sym": [1]}', "event 1: sym is string, not [1]"),
        ('{"sym": "\\ud800"}', "event 1: sym is string"),
        ('{"raw": "\\ud800"}', "event 1: raw is binary"),
        ('{"raw": {}}', "event 1: raw is binary, not {}"),
        ('{"at": "1969-12-31T23:59:59.5Z"}', "it has more digits than the column"),
        ('{"single": 1e300}', "event 1: single is float, not 1E+300"),
        ('{"qty": 1, "qty": 2}', "event 1 is not JSON: a name is there twice"),
        ("[" * 100_000, "event 1 is not JSON"),
    ],
)
def test_events_that_do_not_fit_the_schema_are_refused(event: str, part: str) -> None:
    done = where("explain", "exists qty", event)
    assert isinstance(done.exception, UsageError)
    assert part in str(done.exception)
