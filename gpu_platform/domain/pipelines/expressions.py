"""The expressions of pipelines: ``when: split.output.count > 3 and not failed`` and ``${{ parameters.rate }}``.

::

    or    := and ("or" and)*
    and   := not ("and" not)*
    not   := "not" not | compared
    compared := value (("==" | "!=" | "<" | "<=" | ">" | ">=" | "in") value)?
    value := number | text in quotes | true | false | null | reference | "(" or ")"
    reference := name ("." name | "[" number "]")*

Nothing else: no calls, no arithmetic. An expression that is read can be evaluated without harm.
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
_PLACE = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
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


class ExpressionError(ValueError):
    """The text is no expression, or it cannot be evaluated with these values."""


@dataclass(frozen=True)
class Expression:
    """An expression that was read."""

    text: str
    evaluate: Callable[[Mapping[str, Any]], Any]
    """Its value. Raises :class:`ExpressionError`."""
    references: frozenset[tuple[str, ...]]
    """What it refers to, e.g. ``("split", "output", "count")``."""

    @property
    def roots(self) -> frozenset[str]:
        """The first names of its references."""
        return frozenset(path[0] for path in self.references)


def read(text: str) -> Expression:
    """Read an expression. Raises :class:`ExpressionError`."""
    reader = _Reader(text)
    evaluate = reader.alternatives(0)
    if reader.kind != "end":
        raise reader.unexpected()
    return Expression(text.strip(), evaluate, frozenset(reader.references))


def places(text: str) -> list[Expression]:
    """The expressions in ``${{ … }}`` of a text. Raises :class:`ExpressionError`."""
    return [read(found) for found in _PLACE.findall(text)]


def fill(value: Any, scope: Mapping[str, Any], wanted: Callable[[Expression], bool] = lambda _: True) -> Any:
    """``value`` (texts, lists, objects) with each ``${{ … }}`` replaced by its value.

    A text that is one expression and nothing else becomes that value; inside a longer text a value is written as JSON,
    and a text as it is. ``wanted``: others stay. Raises :class:`ExpressionError`.
    """
    if isinstance(value, str):
        return _filled(value, scope, wanted)
    if isinstance(value, list | tuple):
        return [fill(one, scope, wanted) for one in value]
    if isinstance(value, dict):
        return {name: fill(one, scope, wanted) for name, one in value.items()}
    return value


def as_text(value: Any) -> str:
    """A value as it stands in a longer text, or as an argument of a command."""
    return value if isinstance(value, str) else json.dumps(value)


def _filled(text: str, scope: Mapping[str, Any], wanted: Callable[[Expression], bool]) -> Any:
    whole = _PLACE.fullmatch(text.strip())
    if whole is not None and len(_PLACE.findall(text)) == 1:
        found = read(whole[1])
        return found.evaluate(scope) if wanted(found) else text

    def put(match: re.Match[str]) -> str:
        found = read(match[1])
        return as_text(found.evaluate(scope)) if wanted(found) else match[0]

    return _PLACE.sub(put, text)


def _number(token: str) -> int | float:
    return float(token) if re.search(r"[.eE]", token) else int(token)


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

    def alternatives(self, depth: int) -> Callable[[Mapping[str, Any]], Any]:
        """Read what ``or`` connects."""
        if depth > _DEEPEST:
            raise ExpressionError(f"{self._text.strip()[:40]!r} …: it is nested too deeply")
        parts = [self._conjunction(depth)]
        while self._is("or"):
            self._next()
            parts.append(self._conjunction(depth))
        return parts[0] if len(parts) == 1 else lambda scope: any(part(scope) for part in parts)

    def _conjunction(self, depth: int) -> Callable[[Mapping[str, Any]], Any]:
        parts = [self._negation(depth)]
        while self._is("and"):
            self._next()
            parts.append(self._negation(depth))
        return parts[0] if len(parts) == 1 else lambda scope: all(part(scope) for part in parts)

    def _negation(self, depth: int) -> Callable[[Mapping[str, Any]], Any]:
        odd = False
        while self._is("not"):
            self._next()
            odd = not odd
        inner = self._comparison(depth)
        return (lambda scope: not inner(scope)) if odd else inner

    def _comparison(self, depth: int) -> Callable[[Mapping[str, Any]], Any]:
        left = self._value(depth)
        if not self._is(*_COMPARED):
            return left
        sign = self._next()
        right, compare, text = self._value(depth), _COMPARED[sign], self._text.strip()

        def compared(scope: Mapping[str, Any]) -> Any:
            one, other = left(scope), right(scope)
            try:
                return compare(one, other)
            except TypeError:
                kinds = f"{type(one).__name__} and {type(other).__name__}"
                raise ExpressionError(f"{text!r}: {kinds} cannot be compared with {sign}") from None

        return compared

    def _value(self, depth: int) -> Callable[[Mapping[str, Any]], Any]:
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
        return lambda _: value

    def _reference(self, name: str) -> Callable[[Mapping[str, Any]], Any]:
        path: list[str | int] = [name]
        while self._is(".", "["):
            sign = self._next()
            wanted = "name" if sign == "." else "number"
            if self.kind != wanted:
                raise self.unexpected()
            step = self._next()
            path.append(step if sign == "." else int(float(step)))
            if sign == "[":
                if not self._is("]"):
                    raise self.unexpected()
                self._next()
        self.references.add(tuple(str(part) for part in path))

        def found(scope: Mapping[str, Any]) -> Any:
            value: Any = scope
            for part in path:
                try:
                    value = value[part]
                except (KeyError, IndexError, TypeError):
                    shown = ".".join(str(one) for one in path)
                    raise ExpressionError(f"{shown}: there is no {part!r}") from None
            return value

        return found
