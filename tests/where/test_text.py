"""Filters as text: what is read, what is refused and where, and limits."""

from random import Random

import pytest

from surecast.errors import FilterError, UsageError
from surecast.where import text as text_module
from surecast.where.text import (
    DEPTH_MAX,
    DIGITS_MAX,
    TESTS_MAX,
    TEXT_MAX,
    VALUES_MAX,
    shown,
)
from surecast.where.tree import And, ColumnTest, Node, Not, Or
from tests.edits import Edit, Row, each_check, must_fail
from tests.where.drawn import draw

READ: dict[str, str] = {  # text → canonical text
    "sym == 'IBM'": "sym == 'IBM'",
    'sym=="IBM"and(qty>100)': "sym == 'IBM' and qty > 100",
    "A == 1 OR B == 2 And not c == 3": "A == 1 or B == 2 and not c == 3",
    "(a == 1 or b == 2) and c == 3": "(a == 1 or b == 2) and c == 3",
    "100 < qty": "qty > 100",
    "100.50 >= qty": "qty <= 100.5",
    "'x' == sym": "sym == 'x'",
    "a in (1, -2, +3)": "a in (1, -2, 3)",
    "a in []": "a in ()",
    "a not in ['x']": "a not in ('x')",
    "not a in ('x')": "a not in ('x')",
    "a between 1 and 2 and b == 3": "a between 1 and 2 and b == 3",
    "a not between 1 and 2": "a not between 1 and 2",
    "key startswith 'user:'": "key startswith 'user:'",
    "key not contains b'\\xff\\n'": "key not contains b'\\xff\\x0a'",
    "not not a not in (1)": "not not a not in (1)",
    "a == 9007199254740993.50": "a == 9007199254740993.5",
    "a == -0.0 or b == 00012 or c == +1E-40": "a == -0.0 or b == 12 or c == 1E-40",
    "exists a and exists(b)": "exists a and exists b",
    "not not a == true": "not not a == true",
    "`and` == 1 or `a``b c` == False": "`and` == 1 or `a``b c` == false",
    "größe == '\\u00fc\\ud83d\\ude00'": "`größe` == 'ü😀'",
    "a == 'it\\'s \\\\'": "a == 'it\\'s \\\\'",
    "a == 1e3": "a == 1000.0",
    "a\n ==\t1": "a == 1",
}


@pytest.mark.parametrize("text", READ)
def test_texts_that_are_read(text: str) -> None:
    node = text_module.parse(text)
    assert shown(node) == READ[text]
    assert shown(text_module.parse(READ[text])) == READ[text]


def test_the_tree_of_a_filter() -> None:
    assert text_module.parse("a == 1 and (b in ('x', b'y') or not exists c)") == And((
        ColumnTest("a", "==", (1,), 0),
        Or((ColumnTest("b", "in", ("x", b"y"), 12), Not(ColumnTest("c", "exists", (), 36)))),
    ))  # fmt: skip


REFUSED: dict[str, tuple[int, str]] = {  # text → characters before the mistake, a part of the error
    "": (0, "the filter is empty"),
    "a": (1, "a bool column is tested with a == true"),
    "a = 1": (2, "to compare, write =="),
    "a <> 1": (2, "write !="),
    "a == b": (5, "compared with literals only"),
    "a == 'x": (5, "no closing quote"),
    "a == b'x": (5, "no closing quote"),
    "`a": (0, "in backquotes is empty, or does not end"),
    "``": (0, "in backquotes is empty"),
    "a exists": (2, "write exists before the column"),
    "a not": (5, "the end of the filter where an operator should be (at"),
    "a == .5": (5, "a number begins with a digit"),
    "a-b == 1": (1, "a name that contains - is in backquotes"),
    "a == 1e99999999999999999999999": (5, "too many digits"),
    "a == 1e-401": (5, "too many digits"),
    "a == 1\u0661": (5, "is not a number"),
    "a == '\\0'": (5, "\\0 is not an escape"),
    "1 < a < 5": (6, "a comparison has two sides"),
    "not": (3, "where a column should be"),
    "(a == 1": (7, "where ')' should be"),
    "a == 1 b == 2": (7, "and, or, or the end"),
    "a == 1 && b == 2": (7, "write and"),
    "a is null": (2, "write exists"),
    "null == a": (0, "write exists"),
    "a == null": (5, "write exists"),
    "a like 'x%'": (2, "startswith or contains"),
    "a == 1x": (5, "'1x' is not a number"),
    "a == 1.": (5, "'1.' is not a number"),
    "a == 1e999": (5, "too many digits"),
    "a in 5": (5, "a list of literals"),
    "a in (1, )": (9, "where a literal should be"),
    "a in (1 2)": (8, "',' or ')'"),
    "a in (1]": (7, "',' or ')'"),
    "a between 1": (11, "`and` and the upper bound"),
    "a not == 1": (6, "`not` stands before the column"),
    "exists (a": (9, "')'"),
    "a == '\\q'": (5, "\\q is not an escape"),
    "a == '\\xff'": (5, "\\xff is a byte"),
    "a == b'ü'": (5, "ASCII characters"),
    "a == '\\ud800'": (5, "surrogate"),
    "a == 1 or": (9, "where a column should be"),
    "a ; b": (2, "';' is not expected"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_mistakes_are_told_with_their_position(text: str) -> None:
    with pytest.raises(FilterError) as caught:
        text_module.parse(text)
    at, part = REFUSED[text]
    assert part in str(caught.value)
    assert caught.value.at == at
    assert f"at character {at + 1} of" in str(caught.value)
    assert isinstance(caught.value, UsageError)


def parsed(text: str) -> Node | FilterError:
    try:
        return text_module.parse(text)
    except FilterError as problem:
        return problem


def test_changed_texts_raise_no_other_error() -> None:
    rng = Random(7)
    texts = [shown(draw(seed).node) for seed in range(200)] + list(READ) + list(REFUSED)
    pieces = [
        "'",
        '"',
        "`",
        "(",
        ")",
        " and ",
        " not ",
        "==",
        "\\",
        "b'",
        "1e",
        "\x00",
        "ü",
        ",",
        ".",
    ]
    read = refused = 0
    for _ in range(10_000):
        text = rng.choice(texts)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(pieces) + text[at + rng.choice([0, 0, 1, 3]) :]
        node = parsed(text)
        if isinstance(node, FilterError):
            assert 0 <= node.at <= len(text)
            refused += 1
        else:
            assert shown(text_module.parse(shown(node))) == shown(node)
            read += 1
    assert min(read, refused) > 500


# ---------------------------------------------------------------- limits


def refuses(text: str, part: str) -> None:
    with pytest.raises(FilterError, match=part):
        text_module.parse(text)


def characters() -> None:
    text = "a == 'x'"
    assert text_module.parse(text.replace("x", "x" * (TEXT_MAX - len(text) + 1)))
    refuses(text.replace("x", "x" * (TEXT_MAX - len(text) + 2)), "has 16,385 characters")


def shown_characters() -> None:
    """A filter is sent in its canonical form, which must be read back."""
    text = "a == '%s'"
    assert text_module.parse(text % ("\0" * 2000))
    refuses(text % ("\0" * 4000), "is shown in 24,007 characters")


def digits() -> None:
    assert text_module.parse("a == -" + "9" * DIGITS_MAX)
    assert text_module.parse("a == 0." + "1" * DIGITS_MAX)
    refuses("a == " + "9" * (DIGITS_MAX + 1), "too many digits")
    refuses("a == 0." + "1" * (DIGITS_MAX + 1), "too many digits")


def levels() -> None:
    assert text_module.parse("(" * (DEPTH_MAX - 1) + "a == 1" + ")" * (DEPTH_MAX - 1))
    refuses("(" * DEPTH_MAX + "a == 1" + ")" * DEPTH_MAX, "nested")
    refuses("not " * DEPTH_MAX + "a == 1", "nested")
    refuses("(" * 5000, "nested")


def number_of_tests() -> None:
    assert text_module.parse(" or ".join(["a == 1"] * TESTS_MAX))
    refuses(" or ".join(["a == 1"] * (TESTS_MAX + 1)), "257 tests")


def literals() -> None:
    assert text_module.parse(f"a in ({','.join('1' * VALUES_MAX)})")
    refuses(f"a in ({','.join('1' * VALUES_MAX)}) or b == 1", "4,097 literals")


LIMITS: list[Row] = [
    (characters, Edit("surecast.where.text:parse", "len(text) > TEXT_MAX", "False")),
    (digits, Edit("surecast.where.text:_number", "len(digits) + exponent <= DIGITS_MAX", "9999")),
    (
        shown_characters,
        Edit("surecast.where.text:parse", "(size := len(shown(node))) > TEXT_MAX", "False"),
    ),
    (levels, Edit("surecast.where.text:_Parser.one", "depth > DEPTH_MAX", "depth > 100")),
    (number_of_tests, Edit("surecast.where.text:parse", "len(tests) > TESTS_MAX", "False")),
    (literals, Edit("surecast.where.text:parse", "values > VALUES_MAX", "False")),
]


@each_check(LIMITS)
def test_limits(check: "object", edit: Edit) -> None:
    assert callable(check)
    check()
    must_fail(check, edit)
