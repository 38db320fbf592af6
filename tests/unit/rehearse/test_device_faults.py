"""Faults that only a GPU would show, planted in lines of the engine: `pretrain rehearse` finds each, with its line."""

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from pretrain.commands.rehearse import main
from pretrain.rehearse import run
from pretrain.rehearse.rank import rehearse_rank
from pretrain.rehearse.rank_rehearsal import RankRehearsal
from tests.helpers.breadth import only

ROOT = Path(__file__).parents[3]
CONFIG = ("debug/demo", "precision=bf16", "run.dir=unused", "model.vocabulary=1000", "model.layers=2")
ONE_RANK = ("parallel.tensor=1", "parallel.pipeline=1", "--gpus", "2", "--ranks", "0", "--micro-batches", "1")
BRANCHES = 2 * 2
"""of the two layers"""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """An edit of one line of a function of the engine."""

    module: str
    function: str
    line: str
    """the line, without its indentation"""
    faulty: str

    @property
    def location(self) -> str:
        """`file:line`, as a rehearsal names it."""
        module = importlib.import_module(self.module)
        lines, first = inspect.getsourcelines(self._function(module))
        (offset,) = (number for number, text in enumerate(lines) if text.strip() == self.line)
        return f"{Path(inspect.getfile(module)).relative_to(ROOT)}:{first + offset}"

    def plant(self) -> None:
        """Gives the function the code of the edited file, so that whatever refers to it runs that."""
        module = importlib.import_module(self.module)
        file, _, number = self.location.rpartition(":")
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        lines[int(number) - 1] = lines[int(number) - 1].replace(self.line, self.faulty)
        codes = _codes(compile("\n".join(lines), inspect.getfile(module), "exec"))
        self._function(module).__code__ = next(code for code in codes if code.co_qualname == self.function)

    def _function(self, module: ModuleType) -> Any:
        return reduce(getattr, self.function.split("."), module)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _in_residual(faulty: str) -> Fault:
    return Fault(
        module="pretrain.models.elementwise",
        function="bias_dropout_add",
        line="return residual + x",
        faulty=f"import torch; {faulty}",
    )


def _in_step(statement: str) -> Fault:
    line = "self._sharding.reduce(token_count)"
    return Fault(
        module="pretrain.engine.megatron.engine",
        function="MegatronEngine._compute_gradient",
        line=line,
        faulty=f"{statement}; {line}",
    )


HOST_IN_BACKWARD = Fault(
    module="pretrain.models.parameter_gradients",
    function="_Lookup.backward",
    line="ids, rows = ctx.saved_tensors[0].flatten(), gradient.flatten(0, -2).float()",
    faulty="ids, rows = ctx.saved_tensors[0].flatten(), gradient.flatten(0, -2).float() * torch.ones(())[None]",
)
NUMPY_TABLE = Fault(
    module="pretrain.attention.rotary",
    function="apply_rope",
    line="angles = positions_BS.T[:, :, None, None].float() * frequencies",
    faulty="angles = positions_BS.T[:, :, None, None].float() * torch.from_numpy(__import__('numpy').ones(1))",
)
MIXED = "FakeTensorDeviceMismatchError: Expected all tensors to be on the same device"
FAILS = {
    "host tensor in forward": (_in_residual("return residual + x + torch.zeros(x.shape[-1])"), MIXED),
    "host tensor in a custom backward": (HOST_IN_BACKWARD, MIXED),
    "numpy table": (NUMPY_TABLE, MIXED),
    "numpy of a device tensor": (
        _in_residual("return residual + x * float(x.detach().float().numpy().max())"),
        "TypeError: can't convert cuda:0 device type tensor to numpy",
    ),
    "gradient on the host": (
        _in_step("next(self.bare[0].parameters()).grad = torch.ones(1)"),
        "RuntimeError: attempting to assign a gradient with device type 'cpu'",
    ),
    "generator of the host": (
        _in_residual("return residual + x * torch.rand(1, device=x.device, generator=torch.Generator())"),
        "RuntimeError: Expected a 'cuda' device type for generator but found 'cpu'",
    ),
    "host tensor in a collective of devices": (
        _in_step("torch.distributed.all_reduce(torch.ones(1), group=self.groups.replica_group)"),
        "RuntimeError: No backend type associated with device type cpu",
    ),
}
WAITS = {
    "item": (_in_residual("return residual + x * x.detach().float().mean().item()"), "item"),
    "branch on a value": (_in_residual("return residual + x if x.detach().float().sum() != 0 else x"), "item"),
    "synchronize": (_in_residual("torch.cuda.synchronize(); return residual + x"), "cuda.synchronize"),
    "list as a tensor": (_in_residual("return residual + x * x.new_tensor([1.0, 1.0]).sum()"), "copy from cpu to cuda"),
    "indices on the host": (
        _in_residual("return residual + x + x.detach()[torch.arange(len(x))]"),
        "copy from cpu to cuda",
    ),
    "list as indices": (_in_residual("return residual + x + x.detach()[list(range(len(x)))]"), "copy from cpu to cuda"),
}
HOST_KERNEL = _in_residual(
    "q = x.detach()[None]; torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q); return residual + x"
)


def _with_fault(fault: Fault, *args: Any) -> RankRehearsal:
    fault.plant()
    return rehearse_rank(*args)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fault | None], int]:
    """`pretrain rehearse` of a rank whose engine has a fault. Returns its exit status."""

    def rehearse(fault: Fault | None) -> int:
        if fault is not None:
            planted = partial(_with_fault, fault)
            planted.__module__ = rehearse_rank.__module__  # type: ignore[attr-defined]  # what the server of forks imports
            monkeypatch.setattr(run, "rehearse_rank", planted)
        return main([*CONFIG, *ONE_RANK])

    return rehearse


@pytest.mark.parametrize("name", only(["host tensor in a custom backward", "numpy table"], FAILS))
def test_a_tensor_on_the_wrong_device_fails(
    name: str, command: Callable[[Fault | None], int], capsys: pytest.CaptureFixture[str]
) -> None:
    fault, words = FAILS[name]
    assert command(fault) == 1
    *_, sentence = capsys.readouterr().err.strip().splitlines()
    assert sentence.startswith(f"pretrain: rank 0 cannot make its step: {words}")
    assert sentence.endswith(f"({fault.location})")


def test_an_operator_without_a_cuda_kernel_fails(
    command: Callable[[Fault | None], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(HOST_KERNEL) == 1
    *_, sentence = capsys.readouterr().err.strip().splitlines()
    operator = f"aten::_scaled_dot_product_flash_attention_for_cpu at {HOST_KERNEL.location} ({BRANCHES} times)"
    assert sentence == f"pretrain: rank 0 needs operators without a CUDA kernel: {operator}"


@pytest.mark.parametrize("name", only(["item", "synchronize", "indices on the host"], WAITS))
def test_what_waits_in_every_step_is_named_with_its_line(
    name: str, command: Callable[[Fault | None], int], capsys: pytest.CaptureFixture[str]
) -> None:
    fault, cause = WAITS[name]
    assert command(fault) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "waits of the host in every step" in line)
    assert f"{cause} at {fault.location} ({BRANCHES} times)" in line


def test_without_a_fault_nothing_is_named(
    command: Callable[[Fault | None], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(None) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "waits of the host in every step" in line)
    assert line.count(" at ") == 1
    assert "pretrain/engine/megatron/engine.py" in line
