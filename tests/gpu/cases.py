"""What `make gpu-report` measures on one GPU: shipped configs, each with some settings changed."""

from dataclasses import dataclass

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig

_ONE_GPU = ("parallel.tensor=1", "parallel.pipeline=1", "parallel.sequence=false", "batch.ramp=null")


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    config: str
    sequences: int
    """of a micro-batch; a step has two micro-batches"""
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return " ".join((self.config, f"micro={self.sequences}", *self.overrides))

    def load(self) -> RunConfig:
        batch = (f"batch.sequences={2 * self.sequences}", f"batch.micro_sequences={self.sequences}")
        return load(RunConfig, self.config, ["run.dir=unused", *_ONE_GPU, *batch, *self.overrides])


_LARGE = "gpt3/1.3b"
_DENSE = "model.attention.pattern=[dense]"
CASES = (
    *(Case(f"gpt3/{size}", rows, (_DENSE,)) for size, rows in (("125m", 16), ("350m", 8), ("760m", 8))),
    Case(_LARGE, 4, (_DENSE,)),
    Case(_LARGE, 4),
    Case(_LARGE, 4, (_DENSE, "run.kernels=compiled")),
    *(
        Case(f"gpt3/{size}", rows, (_DENSE, "run.kernels=triton"))
        for size, rows in (("125m", 16), ("350m", 8), ("1.3b", 4))
    ),
    Case(_LARGE, 4, (_DENSE, "run.deterministic=true")),
    Case(_LARGE, 4, (_DENSE, "precision=fp8")),
    Case(_LARGE, 4, (_DENSE, "precision=fp8", "run.kernels=compiled")),
    Case(_LARGE, 8, (_DENSE, "parallel.recompute=selective")),
    Case(_LARGE, 8, (_DENSE, "parallel.recompute=full")),
    Case("gpt3/2.7b", 2, (_DENSE, "parallel.recompute=selective")),
    Case("bert/large", 32),
    Case("t5/large", 8),
    Case("gemma3/1b", 2),
    Case("bloom/560m", 4),
    Case("olmoe/1b-7b", 4, ("model.layers=4",)),
    Case("qwen3-moe/30b-a3b", 2, ("model.layers=4",)),
    Case("deepseek-v2/lite", 2, ("model.layers=4",)),
    Case("gpt3/350m", 8, (_DENSE, "optimizer={name: muon, learning_rate: 1e-3}")),
    Case("gpt3/350m", 8, (_DENSE, "optimizer={name: muon, learning_rate: 1e-3, ns_precision: bf16x3}")),
)


def find_case(name: str) -> Case:
    """The case of CASES with this name."""
    return next(case for case in CASES if case.name == name)
