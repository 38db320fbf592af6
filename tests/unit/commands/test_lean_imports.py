"""The import hook of the commands: what a start skips and saves, that skipped modules can still be imported, and that
no other program gets the hook."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from pretrain.commands import lean_imports

COMPILER = "torch._dynamo.eval_frame", "torch._inductor", "sympy"
UNUSED = *COMPILER, "torch.distributed.tensor", "torch.distributed.checkpoint", "mlflow", "deepspeed", "transformers"
HOOK = """
        from pretrain.commands.lean_imports import install

        install()
"""


def test_importing_the_package_changes_nothing_and_the_hook_of_the_commands_saves_imports(
    record_property: Callable[[str, object], None],
) -> None:
    """Prints the modules and processor seconds that the hook saves at a start; only the modules are checked."""
    imports = """
        import sys

        before = [*sys.meta_path], [*sys.path_hooks], [*sys.path]
        import pretrain, pretrain.__main__, pretrain.commands.lean_imports

        assert (sys.meta_path, sys.path_hooks, sys.path) == before and "torch" not in sys.modules
        import torch

        compile_now = torch.compile
        import pretrain.training.loop

        assert torch.compile is compile_now
        assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("pretrain")]
    """
    everything, all_s = _loaded_after(imports)
    lean, lean_s = _loaded_after(f"{HOOK}\n        import pretrain.training.loop")
    assert {*COMPILER, "torch.distributed.tensor", "torch.distributed.checkpoint"} <= everything
    assert "megatron.core" in lean
    assert lean.isdisjoint(UNUSED)
    saved = f"{len(everything) - len(lean):,} of {len(everything):,} modules, {all_s - lean_s:.1f} of {all_s:.1f} s"
    record_property("imports that a start skips", f"{saved} of processor time")


def test_a_command_installs_the_hook() -> None:
    program = """
        import os, sys

        os._exit = lambda status: print(status, [type(finder).__module__ for finder in sys.meta_path][0])
        sys.argv = ["pretrain", "--help"]
        import pretrain.__main__

        pretrain.__main__.entry()
    """
    assert _printed(program).splitlines()[-1] == "0 pretrain.commands.lean_imports"


def test_the_hook_is_installed_once() -> None:
    assert _printed(f"{HOOK}{HOOK}\n        import sys; print(len(sys.meta_path))") == _printed(
        f"{HOOK}\n        import sys; print(len(sys.meta_path))"
    )


def test_there_is_no_hook_beside_transformer_engine(tmp_path: Path) -> None:
    """The package is only looked for: one that cannot be imported counts too."""
    (tmp_path / "transformer_engine").mkdir()
    (tmp_path / "transformer_engine" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    program = f"""
        import sys

        sys.path.insert(0, {str(tmp_path)!r})
        before = [*sys.meta_path]
{HOOK}
        assert sys.meta_path == before
        print("no hook")
    """
    assert _printed(program) == "no hook\n"


@pytest.mark.slow
def test_a_run_loads_no_compiler_in_its_first_step() -> None:
    """An optimizer imports the compiler to tell it where to stop, and a new process group clears a cache of it."""
    loaded, _ = _loaded_after(f"""{HOOK}
        import pretrain.training.loop
        import torch

        weight = torch.nn.Parameter(torch.ones(2))
        weight.grad = torch.ones(2)
        torch.optim.AdamW([weight], fused=True).step()
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        torch.distributed.destroy_process_group()
    """)
    assert "megatron.core" in loaded
    assert loaded.isdisjoint(UNUSED)


@pytest.mark.slow
def test_sharding_by_deepspeed_loads_no_tracking() -> None:
    loaded, _ = _loaded_after(f"""{HOOK}
        import pretrain.training.loop
        from pretrain.engine.zero import deepspeed_setup

        deepspeed_setup.prepare()
        from pretrain.engine.zero import stage3, stage12
    """)
    assert "deepspeed.runtime.zero.stage3" in loaded
    assert loaded.isdisjoint((*COMPILER, "mlflow", "pandas"))


@pytest.mark.skipif(find_spec("triton") is None, reason="no triton here: every other test starts without it")
@pytest.mark.skipif(version("megatron-core").startswith("0.18."), reason="megatron-core 0.18 needs triton")
def test_a_run_starts_without_triton() -> None:
    """Which megatron-core imports from 0.19 on, and torch's builds for CPUs lack."""
    hidden = """
        import sys

        sys.modules["triton"] = None  # as if it were not installed
    """
    _loaded_after(f"{hidden}{HOOK}\n        import pretrain.training.loop, pretrain.models.experts")


@pytest.mark.slow
def test_skipped_modules_can_be_imported_afterwards() -> None:
    """Modules of the compiler are loaded once; what a function was declared before the compiler was loaded still holds;
    megatron-core's functions work; and every module of a package that had a placeholder can be imported."""
    loaded, _ = _loaded_after(f"""{HOOK}
        import pretrain.training.loop
        import torch

        stops = torch._dynamo.disable(lambda x: x + torch.compiler.is_dynamo_compiling())
        assert stops(0) == 0
        import torch._dynamo.config as config

        assert config is torch._dynamo.config and "pretrain" not in type(torch._dynamo).__module__
        assert config.__spec__.origin.endswith("config.py")
        assert stops(0) == 0 and torch.compile(lambda x: stops(x) + 1, backend="eager")(1) == 2

        from megatron.core.fusions.fused_bias_gelu import bias_gelu

        torch.compiler.set_stance("force_eager")
        x = torch.randn(3, 4)
        near = torch.nn.functional.gelu(x + 1, approximate="tanh")
        torch.testing.assert_close(bias_gelu(torch.ones(4), x), near, atol=1e-4, rtol=0)

        from megatron.core.transformer.fsdp_dtensor_checkpoint import default_planner
        from torch.distributed.checkpoint import FileSystemReader
        from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor

        assert default_planner.DefaultLoadPlanner is DefaultLoadPlanner
    """)
    assert {"torch._dynamo.eval_frame", "torch.distributed.tensor", "torch.distributed.checkpoint"} <= loaded


def test_a_function_is_compiled_once_at_its_first_call() -> None:
    compiled_functions = []

    def compile_now(function: Callable[[int], int], **options: object) -> Callable[[int], int]:
        compiled_functions.append((function, options))
        return lambda x: 10 * function(x)

    def double(x: int) -> int:
        return 2 * x

    compiled = lean_imports._compile_when_called(compile_now, dynamic=True)(double)
    assert compiled_functions == []
    assert (compiled(1), compiled(2)) == (20, 40)
    assert compiled_functions == [(double, {"dynamic": True})]


@pytest.fixture
def import_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a library of the given source under the hook, which has a placeholder for `lean_package` with the name
    `stored`, and skips `lean_skipped`, without which the package cannot be imported. The library counts its `runs`."""
    library, package = tmp_path / "lean_library", tmp_path / "lean_package"
    for folder in (library, package):
        folder.mkdir()
    (tmp_path / "lean_skipped.py").write_text("value = 1\n")
    (package / "__init__.py").write_text("import lean_skipped\nfrom lean_package import stored\nanother = 2\n")
    (package / "stored.py").write_text("def value(): return 3\n")
    (package / "further.py").write_text("value = 4\n")
    (library / "later.py").write_text("")
    (tmp_path / "lean_count.py").write_text("runs = 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(lean_imports, "_ABSENT", {"lean_library": ("lean_skipped",)})
    monkeypatch.setattr(lean_imports, "_DEFERRED", {"lean_library": {"lean_package": ("stored",)}})
    monkeypatch.setattr(lean_imports, "_COMPILER", "sys")  # loaded: no placeholder of it stays in this process
    monkeypatch.setattr(sys, "meta_path", [lean_imports._Finder(), *sys.meta_path])

    def imported(source: str) -> ModuleType:
        (library / "__init__.py").write_text(f"import lean_count\nlean_count.runs += 1\n{source}")
        for name in [name for name in sys.modules if name.startswith("lean_")]:
            monkeypatch.delitem(sys.modules, name)
        return importlib.import_module("lean_library")

    return imported


def test_a_name_that_a_placeholder_stores_loads_the_module_when_it_is_used(
    import_library: Callable[[str], ModuleType],
) -> None:
    library = import_library("from lean_package import stored")
    assert not [name for name in sys.modules if name.startswith(("lean_package", "lean_skipped"))]
    assert library.stored.value() == 3
    assert library.stored._itself() is sys.modules["lean_package.stored"]


@pytest.mark.parametrize(
    "source",
    [
        "from lean_package import another as found",
        "from lean_package.stored import value as found",
        "from lean_package.further import value as found",
        "import lean_package.further as found",
        "from lean_package import stored, another as found",
    ],
)
def test_a_name_that_a_placeholder_lacks_is_loaded(import_library: Callable[[str], ModuleType], source: str) -> None:
    """Whatever release of the library imports it, and though the package needs what is skipped."""
    library = import_library(source)
    assert not isinstance(library.found, lean_imports._Deferred)
    assert sys.modules["lean_package"].lean_skipped.value == 1
    assert sys.modules["lean_count"].runs == 1, "with the other modules still skipped"


def test_a_library_that_requires_a_skipped_module_is_imported_with_it(
    import_library: Callable[[str], ModuleType],
) -> None:
    library = import_library("import lean_library.later, lean_skipped\nfound = lean_skipped.value")
    assert library.found == 1
    assert sys.modules["lean_count"].runs == 2
    assert library.later is sys.modules["lean_library.later"]


def test_a_library_that_cannot_be_imported_raises_its_own_error(import_library: Callable[[str], ModuleType]) -> None:
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'lean_package'"):
        import_library("from lean_package import nothing")
    assert "lean_library" not in sys.modules


def _loaded_after(code: str) -> tuple[set[str], float]:
    """The modules in a process that has run `code`, and its processor seconds, user and system."""
    before = os.times()
    printed = _printed(f"{code}\n        import json, sys; print(json.dumps(list(sys.modules)))")
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return set(json.loads(printed.splitlines()[-1])), seconds


def _printed(code: str) -> str:
    """The standard output of a new interpreter that runs `code`, which is indented by 8 spaces."""
    program = "\n".join(line.removeprefix("        ") for line in code.splitlines())
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
