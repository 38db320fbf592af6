"""What the compiler makes of each Triton kernel, without a GPU: registers, spills and instructions.

    python -m tests.benchmarks.triton_kernels                               # a table for sm_90
    python -m tests.benchmarks.triton_kernels --architectures 80,90 --json

Needs triton, whose wheel has the assembler.
"""

import argparse
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "pretrain/models/triton/kernels"
NUMBERS = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class Build:
    """How a kernel is called."""

    signature: dict[str, str]
    """types of arguments; `numbers` stands for each of NUMBERS"""
    constants: dict[str, Any]
    aligned: tuple[str, ...] = ()
    """numbers that 16 divides, as triton finds by itself when it is called; and all tensors begin at such addresses"""
    options: dict[str, Any] = field(default_factory=dict)


_LOGITS = {"logits": "*numbers", "labels": "*i64", "rows": "i32", "width": "i32", "real": "i32", "first": "i32"}
_SHAPE = {"rows": "i32", "width": "i32"}
_BIASED = _SHAPE | {"x": "*numbers", "bias": "*numbers", "out": "*numbers"}
_GRADIENTS = _SHAPE | {"gradient": "*numbers", "of_x": "*numbers", "sums": "*fp32"}
_NORM = {"x": "*numbers", "gain": "*numbers", "statistics": "*fp32"}
_PLACE = {name: "i32" for name in ("begin", "begin_columns", "levels", "second", "inner")}
_DROPOUT = _PLACE | {"first": "*i64", "offsets": "*i64"}
_STRIDES = ("x_place", "x_row", "x_head", "out_place", "out_row", "out_head")
_TURNED = {name: "i32" for name in ("tokens", "rows", "heads", "pairs", "of_row", "of_place", *_STRIDES)}
_TURNED |= {"x": "*numbers", "positions": "*i64", "frequencies": "*fp32", "out": "*numbers", "gain": "fp32"}
_GELU, _SWIGLU = {"KIND": "gelu_tanh", "GATED": False}, {"KIND": "silu", "GATED": True}
_HIDDEN = {"BIASED": True, "OFFSETS": False, "ROWS_SECOND": True, "INNER": False}
_WIDE = {"CENTERED": True, "OFFSET": 0.0, "ROWS": 1, "BLOCK": 8192}
_FORWARD, _BACKWARD = {"ROWS": 8, "BLOCK": 256}, {"ROWS": 8, "BLOCK": 128, "TILES": 16}
_LINE, _FOUR, _EIGHT = ("width",), {"num_warps": 4}, {"num_warps": 8}
BUILDS = {
    "log_sums.row_sums": Build(_LOGITS | {"sums": "*fp32"}, {"ROWS": 1, "BLOCK": 4096}, _LINE, _EIGHT),
    "log_sums.row_gradients": Build(_LOGITS | {"factors": "*fp32"}, {"ROWS": 1, "BLOCK": 4096}, _LINE, _EIGHT),
    "bias_activation.activated": Build(_BIASED, _GELU | _FORWARD | {"BIASED": True}, _LINE, _FOUR),
    "bias_activation.activated gated": Build(_BIASED, _SWIGLU | _FORWARD | {"BIASED": False}, _LINE, _FOUR),
    "bias_activation.gradients": Build(_BIASED | _GRADIENTS, _GELU | _BACKWARD | {"BIASED": True}, _LINE, _FOUR),
    "bias_activation.gradients gated": Build(
        _BIASED | _GRADIENTS, _SWIGLU | _BACKWARD | {"BIASED": False}, _LINE, _FOUR
    ),
    "dropout.dropped_out": Build(
        _BIASED | _DROPOUT | {"residual": "*numbers"}, _HIDDEN | _FORWARD | {"ADDS": True, "DROPS": True}, _LINE, _EIGHT
    ),
    "dropout.gradients": Build(_GRADIENTS | _DROPOUT, _HIDDEN | _BACKWARD, _LINE, _FOUR),
    "norms.normed": Build(_BIASED | _NORM | {"eps": "fp32"}, _WIDE, _LINE, {"num_warps": 32}),
    "norms.gradients": Build(
        _GRADIENTS | _NORM | {"added": "*numbers"}, _WIDE | {"ADDS": True, "TILES": 64}, _LINE, {"num_warps": 32}
    ),
    "rotary.turned": Build(
        _TURNED,
        {"INTERLEAVED": False, "BACK": False, "TOKENS": 1, "HEADS": 16, "BLOCK": 64},
        ("pairs", *_STRIDES),
        _FOUR,
    ),
}
"""How kernels are compiled here: each in its most common form, those for rows of a whole norm as wide as they come."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A kernel for one architecture and one kind of numbers."""

    kernel: str
    numbers: str
    architecture: int
    registers: int
    """of a thread"""
    spilled_bytes: int
    """of a thread's registers, in local memory"""
    shared_bytes: int
    loads: int
    """instructions that load from global memory, and bits that one of them loads at most"""
    load_bits: int


def kernels() -> dict[str, Any]:
    """Each kernel of the product; functions that they call have names with an underscore."""
    found = {}
    for path in sorted(FOLDER.glob("[a-z]*.py")):
        module = import_module(f"pretrain.models.triton.kernels.{path.stem}")
        for name, one in vars(module).items():
            if not name.startswith("_") and type(one).__name__ in ("JITFunction", "InterpretedFunction"):
                found[f"{path.stem}.{name}"] = one
    return found


def compiled(architectures: Sequence[int]) -> Iterator[Compiled]:
    """Compiles all kernels for these architectures: 90 is H100. Not in a process that interprets kernels."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    found = kernels()
    for name, build in BUILDS.items():
        kernel = found[name.split()[0]]
        for numbers in NUMBERS:
            types = {key: value.replace("numbers", numbers) for key, value in build.signature.items()}
            names = list(inspect.signature(kernel.fn).parameters)
            signature = {one: types.get(one, "constexpr") for one in names}
            aligned = {
                (place,): [["tt.divisibility", 16]]
                for place, one in enumerate(names)
                if signature[one].startswith("*") or one in build.aligned
            }
            for architecture in architectures:
                source = ASTSource(kernel, signature, build.constants, aligned)
                made = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=build.options)
                with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
                    file.write(made.asm["cubin"])
                    file.flush()
                    usage = subprocess.run(
                        [tools / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True
                    ).stdout
                loads = re.findall(r"ld\.global[\w.:]*?(?:\.v(\d))?\.b(\d+)", made.asm["ptx"])
                yield Compiled(
                    kernel=name,
                    numbers=numbers,
                    architecture=architecture,
                    registers=int(_number("REG", usage)),
                    spilled_bytes=int(_number("LOCAL", usage)) + int(_number("STACK", usage)),
                    shared_bytes=made.metadata.shared,
                    loads=len(loads),
                    load_bits=max((int(count or 1) * int(bits) for count, bits in loads), default=0),
                )


def _number(name: str, usage: str) -> str:
    found = re.search(rf"\b{name}:(\d+)", usage)
    if found is None:
        raise ValueError(f"cuobjdump says no {name}: {usage}")
    return found[1]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architectures", default="90", help="Capabilities of GPUs, without the point.")
    parser.add_argument("--json", action="store_true", help="Print a list of objects.")
    options = parser.parse_args()
    if os.environ.pop("TRITON_INTERPRET", None):  # which triton reads when it is imported
        os.execv(sys.executable, [sys.executable, "-m", "tests.benchmarks.triton_kernels", *sys.argv[1:]])
    found = list(compiled([int(one) for one in options.architectures.split(",")]))
    if options.json:
        print(json.dumps([asdict(one) for one in found]))
        return
    import triton

    print(f"triton {triton.__version__}, torch {torch.__version__}")
    print(f"{'kernel':<34}{'numbers':>8}{'sm':>5}{'registers':>11}{'spilled B':>11}{'shared B':>10}{'load bits':>11}")
    for one in found:
        print(
            f"{one.kernel:<34}{one.numbers:>8}{one.architecture:>5}{one.registers:>11}{one.spilled_bytes:>11}"
            f"{one.shared_bytes:>10}{one.load_bits:>11}"
        )


if __name__ == "__main__":
    main()
