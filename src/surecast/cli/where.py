"""`surecast where`: checks filters, and explains why events pass them or not."""

import json
import struct
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surecast.cli.interrupts import loads
from surecast.cli.options import AsJson
from surecast.errors import FilterError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from surecast.where.binding import Bound
    from surecast.where.columns import Column

where = typer.Typer(
    no_args_is_help=True, help="Check filters, and see why events pass them or not."
)

Filter = Annotated[str, typer.Argument(help="""For example: sym == "IBM" and qty > 100""")]
Schema = Annotated[
    str,
    typer.Option(
        help="The typed columns of events: 'sym string, qty int64, px float64'. All events also "
        "have key and time."
    ),
]


@where.command("check")
@loads("surecast.columns.schema", "surecast.where.explain")
def check(text: Filter, schema: Schema = "", as_json: AsJson = False) -> None:
    """Check a filter, and show it as it is evaluated: with literals in the types of the columns.

    Exits with 2 if the filter is invalid or does not fit the columns.
    """
    from surecast.where.explain import bound_text
    from surecast.where.text import parse, shown

    bound, _ = _bound(text, schema)
    found = {"filter": shown(parse(text)), "evaluated": bound_text(bound)}
    print(json.dumps(found) if as_json else "\n".join(found.values()))


@where.command("explain")
@loads("surecast.columns.schema", "surecast.where.explain")
def explain(
    text: Filter,
    events: Annotated[
        list[str],
        typer.Argument(help="""Events as JSON objects: '{"sym": "IBM", "qty": 5}'"""),
    ],
    schema: Schema = "",
    as_json: AsJson = False,
) -> None:
    """Show for each event whether it passes a filter, and the result of each test.

    In JSON, timestamps and dates are strings in ISO format, and columns of bytes are strings in
    UTF-8. Exits with 0 whether or not the events pass.
    """
    from surecast.where.evaluate import passes
    from surecast.where.explain import tests_of

    bound, columns = _bound(text, schema)
    for number, event in enumerate(events, 1):
        batch = _columns_of(event, columns, number)
        passed = bool(passes(bound, batch, 1)[0])
        tests = list(tests_of(bound, batch))
        if as_json:
            print(json.dumps({"event": number, "passes": passed, "tests": tests}))
            continue
        print(f"event {number} {'passes' if passed else 'does not pass'}")
        for test, result in tests:
            print(f"  {'true ' if result else 'false'}  {test}")


def _bound(text: str, schema: str) -> "tuple[Bound, dict[str, Column]]":
    import pyarrow as pa

    from surecast.columns.schema import parse_schema
    from surecast.where.binding import bind
    from surecast.where.columns import columns_of
    from surecast.where.text import parse

    columns = columns_of(parse_schema(schema) if schema else pa.schema([]))
    try:
        return bind(parse(text), columns), columns
    except FilterError as problem:
        if not (text.isascii() and text.isprintable()) or len(text) > 200:
            raise  # the mark could be in another place
        raise UsageError(f"{problem}\n  {text}\n  {' ' * problem.at}^") from None


def _columns_of(event: str, columns: "dict[str, Column]", number: int) -> "dict[str, pa.Array]":
    """The columns of a batch of this one event."""
    import pyarrow as pa

    try:
        found = json.loads(event, parse_float=Decimal, object_pairs_hook=_no_repeats)
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"event {number} is not JSON: {problem}") from None
    if not isinstance(found, dict):
        raise UsageError(f"event {number} is not a JSON object")
    batch = {}
    for name, value in found.items():
        column = columns.get(name)
        if column is None:
            raise UsageError(f"event {number} has {name!r}, which --schema does not declare")
        try:
            batch[name] = pa.array([_raw(column, value)], column.type)
        except FilterError as problem:
            raise UsageError(f"event {number}: {problem.what}") from None
        except (ValueError, OverflowError, TypeError) as problem:
            shown = (
                str(value) if isinstance(value, Decimal) else json.dumps(value, default=str)[:100]
            )
            raise UsageError(
                f"event {number}: {name} is {column.type}, not {shown} ({problem})"
            ) from None
    return batch


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _raw(column: "Column", value: Any) -> Any:
    """A value of JSON as pyarrow takes it for the column."""
    from surecast.where.columns import Kind, number_of, text_of

    wanted: dict[Kind, tuple[type, ...]] = {
        Kind.BOOL: (bool,),
        Kind.INTEGER: (int,),
        Kind.FLOAT: (int, float, Decimal),
    }
    if value is None:
        return None
    if type(value) not in wanted.get(column.kind, (str,)):
        raise TypeError("another type of JSON is needed")
    match column.kind:
        case Kind.BINARY:
            return text_of(column, value, 0)
        case Kind.TIMESTAMP | Kind.DATE:
            exact = number_of(column, value, 0)
            if exact != int(exact):
                raise ValueError("it has more digits than the column")
            return int(exact)
        case Kind.FLOAT:  # NaN and Infinity, which Python's JSON has, are float
            number = (
                struct.unpack("<f", struct.pack("<f", value))[0] if _is_single(column) else value
            )
            return float(number)
    if isinstance(value, str):
        value.encode()  # raises ValueError for half of a surrogate pair
    return value


def _is_single(column: "Column") -> bool:
    return str(column.type) == "float"
