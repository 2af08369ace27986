"""Filters as text: the parser, and the canonical text of a tree.

    filter   = and {"or" and}
    and      = not {"and" not}
    not      = "not" not | "(" filter ")" | test
    test     = column ("==" | "!=" | "<" | "<=" | ">" | ">=") literal
             | literal (the same operators) column
             | column ["not"] "in" "(" [literal {"," literal}] ")"
             | column ["not"] "between" literal "and" literal
             | column ["not"] ("startswith" | "contains") literal
             | "exists" column
    literal  = number | string | b-string | true | false
    column   = name | a name in backquotes

Keywords are read in any case. Strings are in single or double quotes, with the escapes of Python
that `_ESCAPES` lists. Timestamps and dates are strings: their column says that they are one.
"""

import re
from decimal import Context, Decimal
from typing import Final, NoReturn

from surecast.errors import FilterError
from surecast.where.tree import And, ColumnTest, Literal, Node, Not, Or, tests_in

__all__ = [
    "DEPTH_MAX",
    "DIGITS_MAX",
    "SUGGESTED_MAX",
    "TESTS_MAX",
    "TEXT_MAX",
    "VALUES_MAX",
    "column_text",
    "literal_text",
    "parse",
    "shown",
]

TEXT_MAX = 16_384  # characters of a filter
TESTS_MAX = 256  # tests in a filter
VALUES_MAX = 4096  # literals in a filter, all lists together
DEPTH_MAX = 32  # levels of `not` and parentheses
DIGITS_MAX = 400  # digits of a number before the point, and after it, without an exponent
SUGGESTED_MAX = 64  # characters of a name that is mentioned in a hint

_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<number>[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.]))
  | (?P<string>b?'(?:[^'\\\n]|\\.)*'|b?"(?:[^"\\\n]|\\.)*")
  | (?P<name>[^\W\d]\w*)
  | (?P<quoted>`(?:[^`\n]|``)+`)
  | (?P<sign>==|!=|<=|>=|<>|&&|\|\||[<>=!&|()\[\],])
    """,
    re.VERBOSE,
)
_KEYWORDS: Final = (
    "and", "or", "not", "in", "between", "startswith", "contains", "exists", "true", "false",
)  # fmt: skip
_COMPARED: Final = ("==", "!=", "<", "<=", ">", ">=")
_FLIPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_HINTS: Final = {
    "=": "to compare, write ==",
    "<>": "write !=",
    "&&": "write and",
    "||": "write or",
    "!": "write not",
    "&": "write and",
    "|": "write or",
    "null": "to test whether a column has a value, write exists",
    "none": "to test whether a column has a value, write exists",
    "is": "to test whether a column has a value, write exists",
    "exists": "write exists before the column",
    "like": "use startswith or contains",
    "endswith": "there is startswith and contains",
    "starts_with": "write startswith",
}
_ESCAPES: Final = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "r": "\r", "t": "\t"}
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # other names are shown in backquotes
# Characters that are shown as escapes: controls, line separators, marks of writing direction, and
# surrogates, which can only be in names.
_HIDDEN: Final = r"\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
_ESCAPED: Final = re.compile(rf"[{_HIDDEN}'\\]")
_UNREADABLE: Final = re.compile(rf"[{_HIDDEN}]")
_SHOWN: Final = 40  # characters of a token in error messages
_DIGITS_SHOWN: Final = 20  # larger and smaller numbers are shown with an exponent
_EXACT: Final = Context(prec=2 * DIGITS_MAX)


class _Token:
    __slots__ = ("at", "kind", "text")

    def __init__(self, kind: str, text: str, at: int) -> None:
        self.kind = kind  # a group of _TOKEN, "keyword" or "end"
        self.text = text
        self.at = at

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end of the filter"
        cut = self.text if len(self.text) <= _SHOWN else self.text[:_SHOWN] + "…"
        return f"'{_UNREADABLE.sub(_escape, cut)}'"


def parse(text: str) -> Node:
    """The tree of a filter. Raises FilterError that says what is wrong, and where."""
    if len(text) > TEXT_MAX:
        raise FilterError(
            f"the filter has {len(text):,} characters; at most {TEXT_MAX:,}", TEXT_MAX
        )
    if not text.strip():
        raise FilterError("the filter is empty", 0)
    parser = _Parser(_tokens(text))
    node = parser.any_of(1)
    parser.expect_end()
    tests = list(tests_in(node))
    if len(tests) > TESTS_MAX:
        raise FilterError(
            f"the filter has {len(tests)} tests; at most {TESTS_MAX} are allowed",
            tests[TESTS_MAX].at,
        )
    values = 0
    for test in tests:
        values += len(test.values)
        if values > VALUES_MAX:
            raise FilterError(
                f"the filter has {values:,} literals or more; at most {VALUES_MAX:,}", test.at
            )
    if (size := len(shown(node))) > TEXT_MAX:  # it could not be sent
        raise FilterError(f"the filter is shown in {size:,} characters; at most {TEXT_MAX:,}")
    return node


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            _refuse_text(text, at)
        kind = str(match.lastgroup)
        word = match.group()
        if kind == "name" and word.lower() in _KEYWORDS:
            found.append(_Token("keyword", word.lower(), at))
        elif kind != "space":
            found.append(_Token(kind, word, at))
        at = match.end()
    found.append(_Token("end", "", len(text)))
    return found


def _refuse_text(text: str, at: int) -> NoReturn:
    if text[at] in "'\"":
        is_bytes = at > 0 and text[at - 1] == "b" and not text[max(0, at - 2) : at - 1].isalnum()
        raise FilterError("this string has no closing quote", at - is_bytes)
    if text[at] == "`":
        raise FilterError("this name in backquotes is empty, or does not end in its line", at)
    if text[at].isdigit() or text[at] in "+-":
        word = re.match(r"[+-]?[\w.]*", text[at:])
        assert word is not None
        hint = "; a name that contains - is in backquotes" if text[at] == "-" else ""
        raise FilterError(f"{word.group()[:_SHOWN]!a} is not a number{hint}", at)
    hint = "; a number begins with a digit: 0.5" if text[at] == "." else ""
    if not text[at].isascii():
        hint = "; a name with such characters is in backquotes"
    raise FilterError(f"{text[at]!a} is not expected here{hint}", at)


class _Parser:
    """Recursive descent; `depth` counts the levels of parentheses and `not`."""

    def __init__(self, tokens: list[_Token]) -> None:
        self.tokens = tokens
        self.next = 0

    # ------------------------------------------------------------ tokens

    def peek(self) -> _Token:
        return self.tokens[self.next]

    def take(self) -> _Token:
        token = self.tokens[self.next]
        if token.kind != "end":
            self.next += 1
        return token

    def takes(self, kind: str, *texts: str) -> bool:
        """Take the next token if it is one of these."""
        token = self.peek()
        if token.kind != kind or token.text not in texts:
            return False
        self.next += 1
        return True

    def refuse(self, token: _Token, wanted: str) -> NoReturn:
        hint = _HINTS.get(token.text.lower())
        raise FilterError(
            f"{token} where {wanted} should be{f'; {hint}' if hint else ''}", token.at
        )

    def expect_end(self) -> None:
        token = self.peek()
        if token.kind == "end":
            return
        if token.kind == "sign" and token.text in _COMPARED:
            raise FilterError("a comparison has two sides; use `between`, or `and`", token.at)
        self.refuse(token, "and, or, or the end")

    # ------------------------------------------------------------ and, or, not

    def any_of(self, depth: int) -> Node:
        parts = [self.all_of(depth)]
        while self.takes("keyword", "or"):
            parts.append(self.all_of(depth))
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def all_of(self, depth: int) -> Node:
        parts = [self.one(depth)]
        while self.takes("keyword", "and"):
            parts.append(self.one(depth))
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def one(self, depth: int) -> Node:
        token = self.peek()
        if depth > DEPTH_MAX:
            raise FilterError(f"the filter is nested more than {DEPTH_MAX} levels deep", token.at)
        if self.takes("keyword", "not"):
            return Not(self.one(depth + 1))
        if self.takes("sign", "("):
            node = self.any_of(depth + 1)
            if not self.takes("sign", ")"):
                self.refuse(self.peek(), "')'")
            return node
        return self.test()

    # ------------------------------------------------------------ tests

    def test(self) -> Node:
        at = self.peek().at
        if self.takes("keyword", "exists"):
            inside = self.takes("sign", "(")
            node = ColumnTest(self.column(), "exists", (), at)
            if inside and not self.takes("sign", ")"):
                self.refuse(self.peek(), "')'")
            return node
        if self.peek().kind in ("number", "string") or self.peek().text in ("true", "false"):
            return self.flipped(at)
        column = self.column()
        negated = self.takes("keyword", "not")
        token = self.take()
        test = self.compared(column, token, at)
        if test is None:
            hint = _hint(token)
            ends = token.kind == "end" or token.text in (")", "and", "or")
            if ends and not negated and len(column) <= SUGGESTED_MAX:
                hint = f"; a bool column is tested with {column_text(column)} == true"
            raise FilterError(f"{token} where an operator should be{hint}", token.at)
        if negated:
            if token.text in _COMPARED:
                raise FilterError("`not` stands before the column here", token.at)
            return Not(test)
        return test

    def compared(self, column: str, token: _Token, at: int) -> ColumnTest | None:
        """The test of `column` whose operator is `token`; None if it is not an operator."""
        operator = token.text
        if token.kind == "sign" and operator in _COMPARED:
            return ColumnTest(column, operator, (self.literal(),), at)
        if token.kind != "keyword":
            return None
        match operator:
            case "startswith" | "contains":
                return ColumnTest(column, operator, (self.literal(),), at)
            case "between":
                low = self.literal()
                if not self.takes("keyword", "and"):
                    self.refuse(self.peek(), "`and` and the upper bound")
                return ColumnTest(column, operator, (low, self.literal()), at)
            case "in":
                return ColumnTest(column, operator, self.literals(), at)
        return None

    def flipped(self, at: int) -> ColumnTest:
        """A test whose literal comes first: `100 < qty`."""
        value = self.literal()
        token = self.take()
        if token.kind != "sign" or token.text not in _COMPARED:
            self.refuse(token, "a comparison")
        return ColumnTest(self.column(), _FLIPPED.get(token.text, token.text), (value,), at)

    def column(self) -> str:
        token = self.take()
        if token.kind == "name" and token.text.lower() not in ("null", "none"):
            return token.text
        if token.kind == "quoted":
            return token.text[1:-1].replace("``", "`")
        self.refuse(token, "a column")

    def literals(self) -> tuple[Literal, ...]:
        """A list in parentheses or brackets."""
        opening = self.take()
        closing = {"(": ")", "[": "]"}.get(opening.text)
        if closing is None or opening.kind != "sign":
            self.refuse(opening, "'(' and a list of literals")
        values: list[Literal] = []
        if self.takes("sign", closing):
            return ()
        while True:
            values.append(self.literal())
            if self.takes("sign", closing):
                return tuple(values)
            if not self.takes("sign", ","):
                self.refuse(self.peek(), f"',' or {closing!r}")

    def literal(self) -> Literal:
        token = self.take()
        if token.kind == "number":
            return _number(token)
        if token.kind == "string":
            return _string(token)
        if token.kind == "keyword" and token.text in ("true", "false"):
            return token.text == "true"
        if token.kind in ("name", "quoted"):
            raise FilterError(
                f"{token} where a literal should be; a column is compared with literals only, and "
                "strings are in quotes" + _hint(token),
                token.at,
            )
        self.refuse(token, "a literal")


def _hint(token: _Token) -> str:
    hint = _HINTS.get(token.text.lower())
    return f"; {hint}" if hint else ""


def _number(token: _Token) -> int | Decimal:
    try:
        number = Decimal(token.text)
        _, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)
        if number and not -DIGITS_MAX <= exponent <= len(digits) + exponent <= DIGITS_MAX:
            raise OverflowError
    except ArithmeticError:  # decimal's own errors, too
        raise FilterError("this number has too many digits", token.at) from None
    return int(number) if token.text.lstrip("+-").isdigit() else number.normalize(_EXACT)


def _string(token: _Token) -> str | bytes:
    is_bytes = token.text[0] == "b"
    body = token.text[2 if is_bytes else 1 : -1]
    if is_bytes and not body.isascii():
        raise FilterError("b-strings have ASCII characters and escapes (\\xff) only", token.at)

    def plain(match: re.Match[str]) -> str:
        byte, code, other = match.groups()
        if byte is not None:
            if not is_bytes and int(byte, 16) > 127:
                raise FilterError(f"\\x{byte} is a byte: write \\u00{byte}, or b'…'", token.at)
            return chr(int(byte, 16))
        if code is not None and not is_bytes:
            return chr(int(code, 16))
        if other is None or other not in _ESCAPES:
            raise FilterError(f"{match.group()} is not an escape of filters", token.at)
        return _ESCAPES[other]

    value = _ESCAPE.sub(plain, body)
    if is_bytes:
        return value.encode("latin-1")
    try:
        # Two escapes of surrogates are one character, as in JSON.
        return value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise FilterError("half of a surrogate pair is not a character", token.at) from None


# ---------------------------------------------------------------- back to text


def shown(node: Node) -> str:
    """The canonical text of a tree; `parse` makes an equal tree of it, except for `at`."""
    return _any_of(node)


def _any_of(node: Node) -> str:
    if isinstance(node, Or) and len(node.parts) > 1:
        return " or ".join(_all_of(part) for part in node.parts)
    return _all_of(node)


def _all_of(node: Node) -> str:
    if isinstance(node, And) and len(node.parts) > 1:
        return " and ".join(_one(part) for part in node.parts)
    return _one(node)


def _one(node: Node) -> str:
    match node:
        case ColumnTest():
            return _test(node)
        case Not(ColumnTest(_, "in" | "between" | "startswith" | "contains") as test):
            return _test(test, "not ")
        case Not(part):
            return f"not {_one(part)}"
    assert len(node.parts) > 1
    return f"({_any_of(node)})"


def _test(test: ColumnTest, negated: str = "") -> str:
    column, operator = column_text(test.column), test.operator
    values = [literal_text(value) for value in test.values]
    match operator:
        case "exists":
            return f"exists {column}"
        case "in":
            return f"{column} {negated}in ({', '.join(values)})"
        case "between":
            return f"{column} {negated}between {values[0]} and {values[1]}"
    return f"{column} {negated}{operator} {values[0]}"


def column_text(name: str) -> str:
    """The name as filters write it."""
    if _PLAIN.fullmatch(name) and name.lower() not in (*_KEYWORDS, "null", "none"):
        return name
    return "`" + name.replace("`", "``") + "`"


def literal_text(value: Literal) -> str:
    """The literal as filters write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return "b'" + "".join(map(_shown_byte, value)) + "'"
    if isinstance(value, str):
        return "'" + _ESCAPED.sub(_escape, value) + "'"
    if isinstance(value, Decimal):
        value = value.normalize(_EXACT)
        text = f"{value:f}" if abs(value.adjusted()) < _DIGITS_SHOWN else str(value)
        return text if "." in text or "E" in text else f"{text}.0"  # not a whole number
    return str(value)


def _shown_byte(byte: int) -> str:
    char = chr(byte)
    return char if 32 <= byte < 127 and char not in "'\\" else f"\\x{byte:02x}"


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    return "\\" + char if char in "'\\" else f"\\u{ord(char):04x}"
