"""The import direction of docs/architecture.md, kept by reading every file's imports."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("data_pipeline", "pretrain", "launch")

# A part of `pretrain` imports itself and parts of a strictly lower level.
LEVELS = {
    "errors": 0,
    "process": 1,
    "config": 1,
    "plan": 2,
    "data": 3,
    "random": 3,
    "attention": 4,
    "models": 5,
    "objectives": 6,
    "observe": 6,
    "engine": 7,
    "checkpoint": 8,
    "evaluate": 8,
    "build": 9,
    "loop": 10,
    "verify": 10,
    "commands": 11,
    "__main__": 12,
}


def _imports() -> list[tuple[Path, str]]:
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom):
                    assert node.level == 0, f"{path}: imports are absolute"
                    found.append((path.relative_to(ROOT), node.module or ""))
                    found += [(path.relative_to(ROOT), f"{node.module}.{alias.name}") for alias in node.names]
                elif isinstance(node, ast.Import):
                    found += [(path.relative_to(ROOT), alias.name) for alias in node.names]
    return found


def _part(path: Path) -> str:
    return path.parts[1].removesuffix(".py")


IMPORTS = _imports()


def test_data_pipeline_imports_nothing_else_of_ours() -> None:
    wrong = [(p, m) for p, m in IMPORTS if p.parts[0] == "data_pipeline" and m.split(".")[0] in ("pretrain", "launch")]
    assert not wrong


def test_launch_imports_config_and_plan_only() -> None:
    allowed = ("pretrain.config", "pretrain.plan", "pretrain.errors", "pretrain.process.signals")
    wrong = [
        (p, m)
        for p, m in IMPORTS
        if p.parts[0] == "launch" and m.split(".")[0] == "pretrain" and not m.startswith(allowed)
    ]
    assert not wrong


def test_pretrain_imports_nothing_of_launch() -> None:
    assert not [(p, m) for p, m in IMPORTS if p.parts[0] == "pretrain" and m.split(".")[0] == "launch"]


def test_every_part_has_a_level() -> None:
    parts = {_part(p.relative_to(ROOT)) for p in (ROOT / "pretrain").iterdir() if p.suffix == ".py" or p.is_dir()}
    assert parts - {"__init__", "__pycache__"} == set(LEVELS)


def test_pretrain_imports_run_strictly_downward() -> None:
    wrong = []
    for path, module in IMPORTS:
        names = module.split(".")
        if path.parts[0] == "pretrain" and names[0] == "pretrain" and len(names) > 1 and names[1] in LEVELS:
            own, other = _part(path), names[1]
            if own != other and LEVELS[other] >= LEVELS[own]:
                wrong.append(f"{path} imports {module}")
    assert not wrong


@pytest.mark.parametrize("part", ["config", "plan"])
def test_planning_never_imports_torch(part: str) -> None:
    heavy = {"torch", "megatron", "deepspeed", "transformers", "mlflow"}
    wrong = [(p, m) for p, m in IMPORTS if p.parts[:2] == ("pretrain", part) and m.split(".")[0] in heavy]
    wrong += [(p, m) for p, m in IMPORTS if p.parts[0] == "launch" and m.split(".")[0] in heavy]
    assert not wrong


def test_parallel_state_is_touched_in_one_file() -> None:
    users = {p for p, m in IMPORTS if "parallel_state" in m}
    assert users == {Path("pretrain/engine/groups.py")}
