"""Tokens per second of one optimizer step, ours and Hugging Face's, side by side on this machine.

    python -m tests.benchmarks.train_step                        # CPU, fp32, 125m shape: about five minutes
    python -m tests.benchmarks.train_step --shape small --steps 5
    python -m tests.benchmarks.train_step --device cuda          # bf16, 2048 tokens: 125m, 1.3b and 2.7b in turn

One step is forward, backward, clipping and AdamW over the same rows, from the same weights, in one process. The two
take turns (A B A B ...), so that what else the machine does meets both; each pair gives one ratio. Medians are shown.

Hugging Face's side is GPT-2 as fast as plain torch runs it: sdpa attention, the fused tanh-gelu, fused AdamW, no
cache, targets shifted beforehand, gradients set to None. In bf16 it runs under autocast with fp32 weights, which keeps
what ours keeps: fp32 weights and moments.
"""

import argparse
import gc
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path

import megatron.core
import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from transformers import GPT2LMHeadModel

from data_pipeline.batch import Rows
from data_pipeline.tokenizers.specials import Specials
from pretrain.config.health import Health
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.engine import device as devices
from pretrain.engine import rendezvous
from pretrain.engine.base import Engine
from pretrain.engine.make import make_engine
from pretrain.interop.hf.families.gpt2 import hf_config, links
from pretrain.layout.layout import plan_layout
from pretrain.model_spec.flops import training_flops_per_token
from pretrain.model_spec.parameters import num_parameters
from pretrain.plan.hardware import peak_flops

CONFIGS = Path(__file__).parents[2] / "configs" / "gpt3"
SMALL = ["model.layers=6", "model.hidden=256", "model.heads=4", "model.vocabulary=8192"]
MIDDLE = ["model.layers=8", "model.hidden=512", "model.heads=8", "model.vocabulary=8192"]
TINY = ["model.layers=2", "model.hidden=32", "model.heads=2", "model.vocabulary=256", "model.head_dim=16"]
SHAPES = {
    "tiny": ("125m", TINY),
    "small": ("125m", SMALL),
    "30m": ("125m", MIDDLE),
    **{size: (size, []) for size in ("125m", "350m", "760m", "1.3b", "2.7b")},
}
LEARNING_RATE = 1e-4
Step = Callable[[Rows], float]


@dataclass(frozen=True)
class Pair:
    """Seconds of one step of each; on a CPU also processor seconds, which other programs disturb less."""

    ours_s: float
    theirs_s: float
    ours_cpu_s: float
    theirs_cpu_s: float


def main() -> None:
    options = _options()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = started("train_step", options.device)
    for shape in options.shape:
        config = config_of(shape, options)
        try:
            pairs = measure(config, device, options.steps, options.profile)
        except torch.cuda.OutOfMemoryError:
            print(f"{shape}: both models together do not fit this GPU; lower --micro or leave the shape out")
        else:
            print(_report(shape, config, device, pairs))
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def measure(
    config: RunConfig, device: torch.device, steps: int | None = None, profile: bool = False, seconds: float = 0.0
) -> list[Pair]:
    """So many pairs of steps; or, of no number, four and as many more as begin within `seconds`."""
    engine = make_engine(config, plan_layout(config, 1))
    engine.initialise()
    ours, theirs = _our_step(engine), _their_step(engine, config, device)
    losses = [(ours(_rows(config, -1)), theirs(_rows(config, -1))) for _ in range(2)]  # warm-up
    differences = [abs(a - b) for a, b in losses]
    assert max(differences) < (1e-4 if config.precision == "fp32" else 3e-2), f"not the same work: losses {losses}"
    if profile:
        for step in (ours, theirs):
            with torch.profiler.profile(profile_memory=False) as profiler:
                step(_rows(config, 0))
            print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=60))
    pairs: list[Pair] = []
    end = time.perf_counter() + seconds
    while len(pairs) < (steps or 4) or (steps is None and time.perf_counter() < end):
        rows = _rows(config, len(pairs))
        ours_s, ours_cpu_s = timed(partial(ours, rows), device)
        theirs_s, theirs_cpu_s = timed(partial(theirs, rows), device)
        pairs.append(Pair(ours_s, theirs_s, ours_cpu_s, theirs_cpu_s))
    return pairs


def _our_step(engine: Engine) -> Step:
    def step(rows: Rows) -> float:
        result = engine.train_step(rows, LEARNING_RATE, 0)
        return result.loss_sum / result.token_count

    return step


def _their_step(engine: Engine, config: RunConfig, device: torch.device) -> Step:
    """GPT-2 with the engine's present weights."""
    none = dict.fromkeys(("pad", "cls", "sep", "mask", "start", "end"), 0)
    described = hf_config(config.model, Specials(**none, sentinels=(), vocabulary=config.model.vocab_size))
    described.activation_function = "gelu_pytorch_tanh"
    described._attn_implementation = "sdpa"
    weights = {name.removeprefix("model/"): part.pieces[0].value for name, part in engine.state().items()}
    with torch.device("meta"):
        model = GPT2LMHeadModel(described)
    model.to_empty(device=device)
    for link in links(config.model):
        values = link.out(*(weights[name] for name in link.mcore_names))
        model.load_state_dict(dict(zip(link.hf_names, values, strict=True)), strict=False)
    model.tie_weights()
    model.train()
    parameters, settings, micro = list(model.parameters()), config.optimizer, config.batch.micro_sequences
    adam = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=LEARNING_RATE,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        fused=True,
    )

    def step(rows: Rows) -> float:
        loss_sum = torch.zeros((), device=device)
        with torch._C.DisableTorchFunction():
            for start in range(0, len(rows.tokens), micro):
                cut = slice(start, start + micro)
                tokens, labels = (torch.as_tensor(x[cut], device=device) for x in (rows.tokens, rows.labels))
                with _autocast(config, device):
                    logits = model(tokens, use_cache=False).logits
                    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
                (loss / rows.tokens.size).backward()
                loss_sum += loss.detach()
            nn.utils.clip_grad_norm_(parameters, settings.clip_norm)
            adam.step()
            adam.zero_grad()
            return loss_sum.item() / rows.tokens.size

    return step


def _autocast(config: RunConfig, device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast(device.type, torch.bfloat16) if config.precision == "bf16" else nullcontext()


def timed(step: Callable[[], float], device: torch.device) -> tuple[float, float]:
    """(seconds, processor seconds). A step ends by reading its loss, but on a GPU the update may still run then."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start, start_cpu = time.perf_counter(), time.process_time()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, time.process_time() - start_cpu


def _rows(config: RunConfig, seed: int) -> Rows:
    model = config.model
    shape = (config.batch.sequences, model.sequence_length + 1)
    ids = np.random.default_rng(seed + 1).integers(0, model.vocabulary, shape)
    return Rows(ids[:, :-1], ids[:, 1:], np.ones((shape[0], shape[1] - 1), np.float32))


def config_of(shape: str, options: argparse.Namespace) -> RunConfig:
    size, changes = SHAPES[shape]
    fixed = {
        "batch.ramp": "null",
        "batch.sequences": options.rows or options.micro,
        "batch.micro_sequences": options.micro,
        "model.sequence_length": options.sequence,
        "model.attention.pattern": "[dense]",  # all that Hugging Face's GPT-2 has
        "precision": options.dtype,
    }
    overrides = [*changes, *(f"{key}={value}" for key, value in fixed.items())]
    return load(RunConfig, CONFIGS / f"{size}.yaml", overrides)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--shape", choices=SHAPES, action="append", help="may be given several times")
    add("--dtype", choices=("fp32", "bf16"), help="default: fp32 on a CPU, bf16 on a GPU")
    add("--sequence", type=int, help="tokens per row; default: 256 on a CPU, 2048 on a GPU")
    add("--micro", type=int, help="rows per forward pass; default: 2 on a CPU, 4 on a GPU")
    add("--rows", type=int, help="rows per step; default: one micro-batch")
    add("--steps", type=int, default=20, help="pairs measured")
    add("--threads", type=int, help="of torch on a CPU; default: torch's choice")
    add("--profile", action="store_true", help="show where the time of one step of each goes, before measuring")
    options = parser.parse_args()
    cpu = options.device == "cpu"
    options.shape = options.shape or (["125m"] if cpu else ["125m", "1.3b", "2.7b"])
    options.dtype = options.dtype or ("fp32" if cpu else "bf16")
    options.sequence = options.sequence or (256 if cpu else 2048)
    options.micro = options.micro or (2 if cpu else 4)
    return options


def started(module: str, wanted: str) -> torch.device:
    """The device of this process, which is the whole group; says what figures depend on. Exits if it is another."""
    device = devices.install()
    if device.type != wanted:
        sys.exit(f"this process runs on {device.type}, not on {wanted}")
    rendezvous.init_process_group(Health())
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    print(surroundings(module, f"{device_name(device)}{threads}"))
    return device


def surroundings(module: str, hardware: str) -> str:
    """What the figures depend on."""
    return "\n".join(
        [
            f"date      {date.today()}",
            f"command   python -m tests.benchmarks.{module} {' '.join(sys.argv[1:])}",
            f"hardware  {hardware}",
            f"versions  Python {platform.python_version()}, torch {torch.__version__}, megatron-core "
            f"{megatron.core.__version__}, transformers {transformers.__version__}",
        ]
    )


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    information = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", information.read_text()) if information.exists() else None
    return found[1] if found else platform.processor()


def _report(shape: str, config: RunConfig, device: torch.device, pairs: list[Pair]) -> str:
    tokens = config.batch.sequences * config.model.sequence_length
    ours = tokens / statistics.median(pair.ours_s for pair in pairs)
    theirs = tokens / statistics.median(pair.theirs_s for pair in pairs)
    lines = [
        f"\n{shape}: {num_parameters(config.model) / 1e6:.0f}M parameters, {config.precision}, "
        f"{config.batch.sequences} x {config.model.sequence_length} tokens a step, "
        f"{config.batch.micro_sequences} rows a micro-batch, {len(pairs)} pairs",
        f"  ours           {ours:10.1f} tokens/s{_mfu(config, device, ours)}",
        f"  Hugging Face   {theirs:10.1f} tokens/s{_mfu(config, device, theirs)}",
        f"  ours / theirs  {_spread([p.theirs_s / p.ours_s for p in pairs])}",
    ]
    if device.type == "cpu":
        lines.append(f"  by CPU time    {_spread([p.theirs_cpu_s / p.ours_cpu_s for p in pairs])}")
    return "\n".join(lines)


def _spread(ratios: list[float]) -> str:
    """Median, quartiles and extremes of the pairs' ratios."""
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return f"{middle:.3f}  (quartiles {low:.3f} to {high:.3f}, all {min(ratios):.3f} to {max(ratios):.3f})"


def _mfu(config: RunConfig, device: torch.device, tokens_per_s: float) -> str:
    """Share of the GPU's dense peak that the model's own operations take; nothing where the peak is not known."""
    peak = peak_flops(device_name(device), config.precision) if device.type == "cuda" else None
    return "" if peak is None else f"  MFU {tokens_per_s * training_flops_per_token(config.model) / peak:.1%}"


if __name__ == "__main__":
    main()
