"""The expressions of pipelines: ``when: split.output.count > 3 and not failed`` and ``${{ parameters.rate }}``.

::

    or    := and ("or" and)*
    and   := not ("and" not)*
    not   := "not" not | compared
    compared := value (("==" | "!=" | "<" | "<=" | ">" | ">=" | "in") value)?
    value := number | text in quotes | true | false | null | reference | "(" or ")"
    reference := name ("." name | "[" number "]")*

Nothing else: no calls, no arithmetic. An expression that is read can be evaluated without harm: what it reads is
counted (:class:`Work`), and what it would become is measured before it is built.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<text>'[^']*'|\"[^\"]*\")"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_-]*)|(?P<sign>==|!=|<=|>=|<|>|\(|\)|\.|\[|\]))"
)
_BEGIN, _END = "${{", "}}"
_WORDS = {"true": True, "false": False, "null": None}
_KEYWORDS = frozenset({"and", "or", "not", "in"})
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda one, many: one in many,
}
_DEEPEST = 32
_LONGEST_NUMBER = 100
MAX_WORK = 500_000
"""Units of :class:`Work` for what is filled in at once: about a second of one core."""
MAX_FILLED_BYTES = 4 * 1024 * 1024
"""The most bytes that are built of the places of one pipeline file, or of one step's ``for_each``: 16 times the largest
file. Larger values belong into files that the steps read."""
_BYTES_OF_A_UNIT = 64


class ExpressionError(ValueError):
    """The text is no expression, or it cannot be evaluated with these values."""


class TooMuch(ExpressionError):
    """What is asked would be too large, or would take too long. It is raised before that is built."""


class Work:
    """What may still be done with values that a user chose: how much is read of them, and how much is built.

    A reference and a comparison cost one unit, and one more for each 64 bytes that they read.
    """

    def __init__(self, units: int = MAX_WORK, built_bytes: int = MAX_FILLED_BYTES) -> None:
        self._most, self._most_bytes = units, built_bytes
        self.units = 0
        """Units that were spent."""
        self.built_bytes = 0
        self._sizes: dict[int, tuple[Any, int]] = {}

    def spend(self, units: int) -> None:
        """Raise :class:`TooMuch` if so much more is not allowed."""
        self.units += units
        if self.units > self._most:
            raise TooMuch(
                f"its expressions read too much: more than {self._most} references and comparisons, where each 64 "
                "bytes of a value count as one more; use fewer, or smaller values"
            )

    def read(self, *values: Any) -> None:
        """Count these values as read."""
        self.spend(sum(self.size_of(value) for value in values) // _BYTES_OF_A_UNIT)

    def build(self, size: int) -> None:
        """Count ``size`` bytes as built. Call it before. Raises :class:`TooMuch`."""
        self.built_bytes += size
        if self.built_bytes > self._most_bytes:
            raise TooMuch(
                f"with its expressions filled in it has more than {self._most_bytes} bytes, which is the most; put "
                "large values into files that the steps read"
            )
        self.spend(size // _BYTES_OF_A_UNIT)

    def size_of(self, value: Any) -> int:
        """Bytes of the value as it stands in a text. What is large is measured once, and kept."""
        if isinstance(value, str) and value.isascii():
            return len(value)
        known = self._sizes.get(id(value))
        if known is None:
            size = len(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else len(as_text(value))
            self.spend(size // _BYTES_OF_A_UNIT)
            if size < _BYTES_OF_A_UNIT:
                return size
            known = self._sizes[id(value)] = value, size
        return known[1]


_Evaluated = Callable[[Mapping[str, Any], Work], Any]


@dataclass(frozen=True)
class Expression:
    """An expression that was read."""

    text: str
    run: _Evaluated
    references: frozenset[tuple[str, ...]]
    """What it refers to, e.g. ``("split", "output", "count")``."""

    def evaluate(self, scope: Mapping[str, Any], work: Work | None = None) -> Any:
        """Its value. Raises :class:`ExpressionError`."""
        return self.run(scope, Work() if work is None else work)

    @property
    def roots(self) -> frozenset[str]:
        """The first names of its references."""
        return frozenset(path[0] for path in self.references)


@dataclass(frozen=True)
class Template:
    """A text that was read, with the expressions in it."""

    parts: tuple[str | Expression, ...]

    @property
    def roots(self) -> frozenset[str]:
        """The first names of all references."""
        return frozenset().union(*(one.roots for one in self.parts if isinstance(one, Expression)))

    def value(self, scope: Mapping[str, Any], work: Work) -> Any:
        """The text with the values of its expressions. If it is one expression and nothing else, that value itself; in
        a longer text a value stands as JSON, and a text as it is.

        Raises :class:`ExpressionError`, and :class:`TooMuch` before anything is built.
        """
        values = [one if isinstance(one, str) else one.run(scope, work) for one in self.parts]
        if len(values) == 1:
            work.build(0 if isinstance(self.parts[0], str) else work.size_of(values[0]))
            return values[0]
        work.build(sum(work.size_of(one) for one in values))
        return "".join(as_text(one) for one in values)

    def has(self, mark: str, scope: Mapping[str, Any], work: Work) -> bool:
        """True if ``mark``, one character, is in its value as text. Raises :class:`ExpressionError`."""
        for one in self.parts:
            value = one if isinstance(one, str) else one.run(scope, work)
            work.read(value)
            if mark in as_text(value):
                return True
        return False

    def size(self, scope: Mapping[str, Any], work: Work) -> int:
        """The bytes of the value as text. Nothing is built. Raises :class:`ExpressionError`."""
        return sum(work.size_of(one if isinstance(one, str) else one.run(scope, work)) for one in self.parts)


def read(text: str) -> Expression:
    """Read an expression. Raises :class:`ExpressionError`."""
    reader = _Reader(text)
    evaluate = reader.alternatives(0)
    if reader.kind != "end":
        raise reader.unexpected()
    return Expression(text.strip(), evaluate, frozenset(reader.references))


def places(text: str) -> list[Expression]:
    """The expressions in ``${{ … }}`` of a text. Raises :class:`ExpressionError`."""
    return [one for one in template(text).parts if isinstance(one, Expression)]


def template(text: str, wanted: Callable[[Expression], bool] = lambda _: True) -> Template:
    """Read a text. ``wanted``: other expressions stay as they are written. Raises :class:`ExpressionError`."""
    if _BEGIN not in text:
        return Template((text,))
    parts: list[str | Expression] = []
    for literal, inner in _split(text):
        if literal:
            parts.append(literal)
        if inner is not None:
            found = read(inner)
            parts.append(found if wanted(found) else f"{_BEGIN}{inner}{_END}")
    expressions_in = [one for one in parts if isinstance(one, Expression)]
    if len(expressions_in) == 1 and not any(isinstance(one, str) and one.strip() for one in parts):
        return Template(tuple(expressions_in))
    return Template(tuple(parts))


def fill(
    value: Any,
    scope: Mapping[str, Any],
    wanted: Callable[[Expression], bool] = lambda _: True,
    work: Work | None = None,
) -> Any:
    """``value`` (texts, lists, objects) with each ``${{ … }}`` replaced by its value; see :meth:`Template.value`.

    ``wanted``: others stay. ``work``: what may still be built. Raises :class:`ExpressionError`.
    """
    work = Work() if work is None else work
    if isinstance(value, str):
        return template(value, wanted).value(scope, work)
    if isinstance(value, list | tuple):
        return [fill(one, scope, wanted, work) for one in value]
    if isinstance(value, dict):
        return {name: fill(one, scope, wanted, work) for name, one in value.items()}
    return value


def as_text(value: Any) -> str:
    """A value as it stands in a longer text, or as an argument of a command."""
    return value if isinstance(value, str) else json.dumps(value)


def _split(text: str) -> Iterator[tuple[str, str | None]]:
    """What stands before each place, and what is in the place. Not by a pattern: that takes quadratic time for a text
    of openings that nothing closes."""
    at = 0
    while (begin := text.find(_BEGIN, at)) >= 0 and (end := text.find(_END, begin + len(_BEGIN))) >= 0:
        yield text[at:begin], text[begin + len(_BEGIN) : end]
        at = end + len(_END)
    yield text[at:], None


def _number(token: str) -> int | float:
    if len(token) > _LONGEST_NUMBER:
        raise ExpressionError(f"{token[:20]}… is a number of {len(token)} characters; at most {_LONGEST_NUMBER}")
    return float(token) if re.search(r"[.eE]", token) else int(token)


def _place(token: str) -> int:
    number = _number(token)
    if isinstance(number, float):
        raise ExpressionError(f"{token} is no place in a list: use 0, 1, 2, …")
    return number


class _Reader:
    """Reads token by token, and returns functions of the scope."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self.references: set[tuple[str, ...]] = set()
        self.kind, self._token = next(self._tokens)

    def _split(self) -> Iterator[tuple[str, str]]:
        at, end = 0, len(self._text.rstrip())
        while at < end:
            match = _TOKEN.match(self._text, at)
            if match is None:
                raise ExpressionError(f"{self._text.strip()!r}: {self._text[at:].strip()[:10]!r} is not understood")
            at = match.end()
            assert match.lastgroup is not None
            yield match.lastgroup, match[match.lastgroup]
        while True:
            yield "end", ""

    def unexpected(self) -> ExpressionError:
        what = f"{self._token!r} stands" if self._token else "it ends"
        return ExpressionError(f"{self._text.strip()!r}: {what} where something else is expected")

    def _next(self) -> str:
        token = self._token
        self.kind, self._token = next(self._tokens)
        return token

    def _is(self, *tokens: str) -> bool:
        return self.kind in ("name", "sign") and self._token in tokens

    def alternatives(self, depth: int) -> _Evaluated:
        """Read what ``or`` connects."""
        if depth > _DEEPEST:
            raise ExpressionError(f"{self._text.strip()[:40]!r} …: it is nested too deeply")
        parts = [self._conjunction(depth)]
        while self._is("or"):
            self._next()
            parts.append(self._conjunction(depth))
        return parts[0] if len(parts) == 1 else lambda scope, work: any(part(scope, work) for part in parts)

    def _conjunction(self, depth: int) -> _Evaluated:
        parts = [self._negation(depth)]
        while self._is("and"):
            self._next()
            parts.append(self._negation(depth))
        return parts[0] if len(parts) == 1 else lambda scope, work: all(part(scope, work) for part in parts)

    def _negation(self, depth: int) -> _Evaluated:
        odd = False
        while self._is("not"):
            self._next()
            odd = not odd
        inner = self._comparison(depth)
        return (lambda scope, work: not inner(scope, work)) if odd else inner

    def _comparison(self, depth: int) -> _Evaluated:
        left = self._value(depth)
        if not self._is(*_COMPARED):
            return left
        sign = self._next()
        right, compare, text = self._value(depth), _COMPARED[sign], self._text.strip()

        def compared(scope: Mapping[str, Any], work: Work) -> Any:
            one, other = left(scope, work), right(scope, work)
            work.read(one, other)
            try:
                return compare(one, other)
            except TypeError:
                kinds = f"{type(one).__name__} and {type(other).__name__}"
                raise ExpressionError(f"{text!r}: {kinds} cannot be compared with {sign}") from None

        return compared

    def _value(self, depth: int) -> _Evaluated:
        if self._is("("):
            self._next()
            inner = self.alternatives(depth + 1)
            if not self._is(")"):
                raise self.unexpected()
            self._next()
            return inner
        kind, token = self.kind, self._token
        if kind not in ("number", "text", "name") or token in _KEYWORDS:
            raise self.unexpected()
        self._next()
        if kind == "name" and token not in _WORDS:
            return self._reference(token)
        value = _WORDS[token] if kind == "name" else token[1:-1] if kind == "text" else _number(token)
        return lambda _, work: value

    def _reference(self, name: str) -> _Evaluated:
        path: list[str | int] = [name]
        while self._is(".", "["):
            sign = self._next()
            wanted = "name" if sign == "." else "number"
            if self.kind != wanted:
                raise self.unexpected()
            step = self._next()
            path.append(step if sign == "." else _place(step))
            if sign == "[":
                if not self._is("]"):
                    raise self.unexpected()
                self._next()
        self.references.add(tuple(str(part) for part in path))

        def found(scope: Mapping[str, Any], work: Work) -> Any:
            work.spend(len(path))
            value: Any = scope
            for part in path:
                try:
                    value = value[part]
                except (KeyError, IndexError, TypeError):
                    shown = ".".join(str(one) for one in path)
                    raise ExpressionError(f"{shown}: there is no {part!r}") from None
            return value

        return found
