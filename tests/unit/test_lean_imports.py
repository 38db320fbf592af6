"""What a start leaves out of its libraries' imports, and that all of it is there for who asks."""

import json
import subprocess
import sys
from collections.abc import Callable

from pretrain import lean_imports

COMPILER = "torch._dynamo.eval_frame", "torch._inductor", "sympy"
UNUSED = *COMPILER, "torch.distributed.tensor", "torch.distributed.checkpoint", "mlflow", "deepspeed", "transformers"


def test_a_run_loads_no_compiler_and_no_library_that_it_does_not_use() -> None:
    """Nor do the first step of an optimizer, which asks the compiler to stop, and a process group."""
    loaded = _loaded_after("""
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


def test_sharding_by_deepspeed_loads_no_tracking() -> None:
    loaded = _loaded_after("""
        import pretrain.training.loop
        from pretrain.engine.zero import deepspeed_setup

        deepspeed_setup.prepare()
        from pretrain.engine.zero import stage3, stage12
    """)
    assert "deepspeed.runtime.zero.stage3" in loaded
    assert loaded.isdisjoint((*COMPILER, "mlflow", "pandas"))


def test_what_was_left_out_is_there_for_who_asks() -> None:
    """Modules of the compiler are loaded once; what it was told before it was loaded still holds; megatron-core's
    functions work; and of a package that had a stand-in, everything can be imported."""
    loaded = _loaded_after("""
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


def test_a_function_is_compiled_once_when_it_is_called_first() -> None:
    asked = []

    def compile_now(function: Callable[[int], int], **options: object) -> Callable[[int], int]:
        asked.append((function, options))
        return lambda x: 10 * function(x)

    def double(x: int) -> int:
        return 2 * x

    compiled = lean_imports._compile_when_called(compile_now, dynamic=True)(double)
    assert asked == []
    assert (compiled(1), compiled(2)) == (20, 40)
    assert asked == [(double, {"dynamic": True})]


def _loaded_after(code: str) -> set[str]:
    """The modules in a process that has run `code`."""
    lines = [line.removeprefix("        ") for line in code.splitlines()]
    program = "\n".join([*lines, "import json, sys", "print(json.dumps(list(sys.modules)))"])
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))
