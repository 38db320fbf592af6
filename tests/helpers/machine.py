"""What numbers depend on besides the code: this processor, and arithmetic that is the same on any."""

import platform
from pathlib import Path

import torch

PORTABLE = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
"""The environment of a process whose sums have the same bits on every x86 processor: torch's, oneDNN's and MKL's oldest
kernels, on one thread. The libraries read it when they are first used."""

CAPS = {
    "AVX512, no half precision": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
    "none: portable arithmetic": PORTABLE,
}
"""Lesser instruction sets that this processor can imitate: name -> environment."""


def processor() -> str:
    """Model, instruction set that torch uses, and whether it multiplies bf16."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    numbers = [f"{key} {facts[key]}" for key in ("cpu family", "model", "stepping") if key in facts]
    name = ", ".join([facts.get("model name", platform.machine()), *numbers])
    bf16 = "bf16" if torch.cpu.get_capabilities().get("avx512_bf16") else "no bf16"
    return f"{name}; torch {torch.__version__} with {torch.backends.cpu.get_cpu_capability()}, {bf16}"


def build() -> list[str]:
    """What portable arithmetic still depends on: torch's version and the architecture."""
    return [torch.__version__, platform.machine()]
