"""The faults that can be planted in a source text: each is one small edit of one expression or statement, which leaves
every line where it is.

    for fault in faults(source, lines={12, 13}):
        broken = fault.planted(source)

Text that only speaks to people (docstrings, f-strings, what is raised or asserted) and annotations stay as they are.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

_TURNED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"), ast.Pow: ("**", "*"), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}  # fmt: skip
"""operator -> (its text, the text in its place)"""
_OTHER_NAME = {
    "min": "max", "max": "min", "any": "all", "all": "any", "sum": "mean", "mean": "sum", "minimum": "maximum",
    "maximum": "minimum", "argmin": "argmax", "argmax": "argmin", "floor": "ceil", "ceil": "floor", "amax": "amin",
    "amin": "amax", "cumsum": "cumprod", "startswith": "endswith", "endswith": "startswith", "lstrip": "rstrip",
    "rstrip": "lstrip", "zeros": "ones", "ones": "zeros", "zeros_like": "ones_like", "ones_like": "zeros_like",
}  # fmt: skip
"""function or method -> another of its kind"""
_LEFT_OUT_METHODS = {"float", "double", "half", "bfloat16", "detach", "clone", "to", "type_as", "abs", "exp", "log"}
_LEFT_OUT_FUNCTIONS = {"float", "int", "bool", "abs", "round", "sorted", "reversed", "set", "list"}
_ANY_ORDER = {"min", "max", "minimum", "maximum", "gcd"}
"""functions of which the order of arguments changes nothing"""
_SPEAKS = (ast.JoinedStr, ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.arg)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """An edit: in bytes `start` to `end` of the UTF-8 source stands `text`. `first` and `last` are the lines of the
    statement that it changes, counted from one; of a compound statement, those of its head."""

    kind: str
    start: int
    end: int
    text: str
    line: int
    first: int
    last: int

    def planted(self, source: str) -> str:
        """The source with the fault in it."""
        raw = source.encode()
        return (raw[: self.start] + self.text.encode() + raw[self.end :]).decode()


def faults(source: str, lines: Iterable[int] | None = None) -> list[Fault]:
    """Every fault of `source` that changes one of `lines` (default: all), in the order of the text. Each makes a text
    that Python can read."""
    wanted = None if lines is None else set(lines)
    found = {fault for fault in _FaultFinder(source).all() if wanted is None or fault.line in wanted}
    return sorted(
        (fault for fault in found if _is_python(fault.planted(source))), key=lambda f: (f.start, f.kind, f.text)
    )


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


class _FaultFinder:
    def __init__(self, source: str) -> None:
        self._raw = source.encode()
        self._tree = ast.parse(source)
        lengths = [len(line) for line in self._raw.splitlines(keepends=True)]
        self._starts = [0, *accumulate(lengths)]

    def all(self) -> Iterator[Fault]:
        yield from self._inside(self._tree, (1, 1))

    def _inside(self, node: ast.AST, statement: tuple[int, int]) -> Iterator[Fault]:
        if isinstance(node, _SPEAKS) or _is_text(node) or _is_for_types(node) or _is_strict(node):
            return
        if isinstance(node, ast.stmt):
            statement = (node.lineno, _head_end(node))
        for kind, start, end, text in self._of(node):
            if self._raw[start:end].decode() != text:
                first, last = statement
                line = self._line(start)
                yield Fault(kind=kind, start=start, end=end, text=text, line=line, first=first, last=last)
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list", "type_comment", "type_params"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        yield from self._inside(child, statement)

    def _of(self, node: ast.AST) -> Iterator[tuple[str, int, int, str]]:
        match node:
            case ast.BinOp(left=left, op=op, right=right):
                yield from self._turned(op, self._end(left), self._start(right))
            case ast.AugAssign(target=target, op=op, value=value):
                yield from self._turned(op, self._end(target), self._start(value))
            case ast.Compare(left=left, ops=ops, comparators=others):
                for compared, (before, after) in zip(ops, pairwise([left, *others]), strict=True):
                    yield from self._turned(compared, self._end(before), self._start(after))
            case ast.BoolOp(op=op, values=values):
                for before, after in pairwise(values):
                    yield from self._turned(op, self._end(before), self._start(after))
                neutral = str(isinstance(op, ast.And))
                for value in values:
                    yield "condition left out", *self._span(value), neutral
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
                yield "sign or not left out", *self._span(node), f"({self._text(operand)})"
            case ast.If(test=test) | ast.IfExp(test=test):
                if not isinstance(test, ast.BoolOp):
                    yield "condition left out", *self._span(test), "True"
                    yield "condition left out", *self._span(test), "False"
            case ast.comprehension(ifs=conditions):
                for condition in conditions:
                    yield "condition left out", *self._span(condition), "True"
            case ast.Constant(value=value):
                yield from self._other_constant(node, value)
            case ast.Call():
                yield from self._call_faults(node)
            case ast.Expr(value=ast.Call()):
                yield "statement left out", *self._span(node), "pass"
            case ast.Continue() | ast.Break():
                yield "statement left out", *self._span(node), "pass"

    def _turned(self, operator: ast.AST, start: int, end: int) -> Iterator[tuple[str, int, int, str]]:
        """The operator, which stands between `start` and `end`, perhaps among parentheses."""
        if type(operator) not in _TURNED:
            return
        old, new = _TURNED[type(operator)]
        word = re.escape(old).replace(r"\ ", r"\s+")
        found = re.search(rf"\b{word}\b" if old[0].isalpha() else word, self._raw[start:end].decode())
        if found is not None:
            yield "operator turned", start + found.start(), start + found.end(), new

    def _other_constant(self, node: ast.Constant, value: object) -> Iterator[tuple[str, int, int, str]]:
        if isinstance(value, bool):
            yield "constant turned", *self._span(node), str(not value)
        elif isinstance(value, int):
            yield "constant moved by one", *self._span(node), str(value + 1)
            if value > 1:
                yield "constant moved by one", *self._span(node), str(value - 1)
        elif isinstance(value, float):
            yield "constant moved by one", *self._span(node), repr(value + 1)

    def _call_faults(self, node: ast.Call) -> Iterator[tuple[str, int, int, str]]:
        function, arguments = node.func, node.args
        if isinstance(function, ast.Attribute):
            name_end = self._end(function)
            if function.attr in _LEFT_OUT_METHODS:
                yield "method left out", *self._span(node), self._text(function.value)
            if function.attr in _OTHER_NAME:
                yield "another of its kind", name_end - len(function.attr), name_end, _OTHER_NAME[function.attr]
        elif isinstance(function, ast.Name):
            if function.id in _LEFT_OUT_FUNCTIONS and len(arguments) == 1 and not node.keywords:
                yield "function left out", *self._span(node), f"({self._text(arguments[0])})"
            if function.id in _OTHER_NAME and function.id not in ("sum", "mean"):
                yield "another of its kind", *self._span(function), _OTHER_NAME[function.id]
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        is_ordered = name not in _ANY_ORDER and not any(isinstance(one, ast.Starred) for one in arguments[:2])
        if len(arguments) > 1 and is_ordered:
            first, second = arguments[:2]
            between = self._raw[self._end(first) : self._start(second)].decode()
            is_plain = not any(isinstance(argument, ast.Constant | ast.GeneratorExp) for argument in (first, second))
            if is_plain and "#" not in between:
                swapped = self._text(second) + between + self._text(first)
                yield "arguments swapped", self._start(first), self._end(second), swapped
        given = [*arguments, *(keyword.value for keyword in node.keywords)]
        for keyword, before in zip(node.keywords, given[len(arguments) - 1 :] if arguments else given, strict=False):
            if keyword.arg in ("dtype", "device") and self._start(before) < self._start(keyword):
                yield "keyword left out", self._end(before), self._end(keyword), ""

    def _span(self, node: ast.AST) -> tuple[int, int]:
        return self._start(node), self._end(node)

    def _start(self, node: Any) -> int:
        return self._at(node.lineno, node.col_offset)

    def _end(self, node: Any) -> int:
        return self._at(node.end_lineno, node.end_col_offset)

    def _at(self, line: int, column: int) -> int:
        """The place in bytes of a line, from one, and a column, in bytes."""
        return self._starts[line - 1] + column

    def _text(self, node: ast.AST) -> str:
        return self._raw[self._start(node) : self._end(node)].decode()

    def _line(self, at: int) -> int:
        return self._raw.count(b"\n", 0, at) + 1


def _is_text(node: ast.AST) -> bool:
    """Whether a statement is only a string: a docstring, or what says what a constant is."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_strict(node: ast.AST) -> bool:
    """Whether it is `strict` of `zip`, which like what is asserted changes nothing where all is as it should be."""
    return isinstance(node, ast.keyword) and node.arg == "strict"


def _is_for_types(node: ast.AST) -> bool:
    """Whether a block is there for type checkers alone."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _head_end(node: ast.stmt) -> int:
    """The last line of a statement, or of the head of one with a block."""
    body = getattr(node, "body", None)
    return body[0].lineno - 1 if isinstance(body, list) and body[0].lineno > node.lineno else node.end_lineno or 0
