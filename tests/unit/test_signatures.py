"""Signatures: more than five arguments are passed by name, to functions, methods and frozen dataclasses alike."""

import ast

import pytest

from tests.helpers.sources import Nodes, nodes, parsed

LIMIT = 5
"""Most arguments that a call may pass by position."""

LIBRARIES = {"torch", "megatron", "deepspeed", "transformers", "lm_eval", "tokenizers", "safetensors"}
"""They call the methods that a subclass overrides, by position: such a method keeps the library's signature."""

Classes = dict[str, ast.ClassDef]


def _imported(module: Nodes) -> dict[str, str]:
    """The top-level package that each imported name comes from."""
    origins = {}
    for node in module:
        if isinstance(node, ast.Import):
            origins |= {(alias.asname or alias.name.split(".")[0]): alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            origins |= {(alias.asname or alias.name): node.module.split(".")[0] for alias in node.names}
    return origins


def _name(node: ast.expr) -> str:
    """The last name of a base, a decorator or an annotation, without its call or its parameters."""
    if isinstance(node, ast.Call):
        return _name(node.func)
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _root(node: ast.expr) -> str:
    """The first name of a dotted one: torch of torch.nn.Module."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _libraries_classes(modules: list[Nodes], classes: Classes) -> set[str]:
    """The names of classes of ours that derive from a class of LIBRARIES, directly or through one of ours."""
    derived: set[str] = set()
    for module in modules:
        origins = _imported(module)
        for node in module:
            if isinstance(node, ast.ClassDef) and any(origins.get(_root(base)) in LIBRARIES for base in node.bases):
                derived.add(node.name)
    while (
        more := {name for name, node in classes.items() if any(_name(base) in derived for base in node.bases)} - derived
    ):
        derived |= more
    return derived


def _keyword(decorator: ast.expr, name: str) -> bool:
    return isinstance(decorator, ast.Call) and any(
        keyword.arg == name and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in decorator.keywords
    )


def _positional_fields(node: ast.ClassDef, classes: Classes) -> int:
    """Fields of a dataclass and of its bases that its constructor takes by position; 0 for any other class."""
    decorator = next((one for one in node.decorator_list if _name(one) == "dataclass"), None)
    if decorator is None:
        return 0
    bases = [classes[_name(base)] for base in node.bases if _name(base) in classes and _name(base) != node.name]
    inherited = sum(_positional_fields(base, classes) for base in bases)
    if _keyword(decorator, "kw_only"):
        return inherited
    own = 0
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or _name(statement.annotation) == "ClassVar":
            continue
        if _name(statement.annotation) == "KW_ONLY":
            break
        value = statement.value
        arguments = value.keywords if isinstance(value, ast.Call) and _name(value) == "field" else []
        own += not any(
            one.arg in ("init", "kw_only")
            and isinstance(one.value, ast.Constant)
            and one.value.value is (one.arg == "kw_only")
            for one in arguments
        )
    return inherited + own


def _is_frozen(node: ast.ClassDef) -> bool:
    return any(_name(one) == "dataclass" and _keyword(one, "frozen") for one in node.decorator_list)


def _positional_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool) -> int:
    count = len(node.args.posonlyargs) + len(node.args.args)
    return count - (method and not any(_name(one) == "staticmethod" for one in node.decorator_list))


def _offenders(files: list[tuple[str, Nodes]]) -> list[str]:
    """`file:line: name (count)` of each function and frozen dataclass with more than LIMIT positional arguments."""
    classes = {node.name: node for _, module in files for node in module if isinstance(node, ast.ClassDef)}
    exempt = _libraries_classes([module for _, module in files], classes)
    lines = []
    for file, module in files:
        methods: dict[int, ast.ClassDef] = {
            id(statement): node for node in module if isinstance(node, ast.ClassDef) for statement in node.body
        }
        for node in module:
            if isinstance(node, ast.ClassDef) and _is_frozen(node):
                count = _positional_fields(node, classes)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if any(_root(one) == "triton" for one in node.decorator_list):
                    continue  # its compiler knows no arguments that are passed by name alone
                owner = methods.get(id(node))
                if owner is not None and owner.name in exempt:
                    continue
                count = _positional_parameters(node, method=owner is not None)
            else:
                continue
            if count > LIMIT:
                lines.append(f"{file}:{node.lineno}: {node.name} ({count})")
    return lines


def test_more_than_five_arguments_are_keyword_only() -> None:
    assert not _offenders(list(parsed()))


def _dataclass(options: str, fields: str) -> str:
    return f"@dataclass({options})\nclass A:\n" + "\n".join(f" {name}: int" for name in fields)


@pytest.mark.parametrize(
    ("source", "offends"),
    [
        ("def f(a, b, c, d, e): ...", False),
        ("def f(a, b, c, d, e, g): ...", True),
        ("def f(a, *, b, c, d, e, g): ...", False),
        ("class A:\n def f(self, a, b, c, d, e): ...", False),
        ("class A:\n @staticmethod\n def f(a, b, c, d, e, g): ...", True),
        ("import torch\nclass A(torch.nn.Module):\n def forward(self, a, b, c, d, e, g): ...", False),
        ("from torch import nn\nclass A(nn.Module): ...\nclass B(A):\n def f(self, a, b, c, d, e, g): ...", False),
        (_dataclass("frozen=True", "abcde"), False),
        (_dataclass("frozen=True", "abcdef"), True),
        (_dataclass("", "abcdef"), False),
        (_dataclass("frozen=True, kw_only=True", "abcdef"), False),
        (_dataclass("frozen=True", "abcdef") + " = field(init=False)", False),
        (_dataclass("frozen=True", "abc") + "\n@dataclass(frozen=True)\nclass B(A):\n d: int\n e: int\n f: int", True),
    ],
)
def test_what_offends(source: str, offends: bool) -> None:
    assert bool(_offenders([("a/b.py", nodes(source))])) is offends
