"""megatron-core's optimizers (plain, mixed precision, distributed = ZeRO-1), and where their state lies.

Whatever the optimizer, this rank owns some flat range of each of its parameters: the fp32 weights it updates
(`main`) and the two Adam moments of the same shape. `owned` lists those ranges; checkpoints and initialisation need
nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import FP32Optimizer, MegatronOptimizer
from torch import Tensor, nn

from pretrain.config.schema import RunConfig

_BLOCK = 1024


@dataclass(frozen=True)
class Owned:
    """Flat range [start, start + main.numel()) of a parameter's local values, with its optimizer state."""

    parameter: nn.Parameter
    main: Tensor
    start: int
    exp_avg: Tensor
    exp_avg_sq: Tensor


def build(config: RunConfig, chunks: list[DistributedDataParallel], shards: bool) -> MegatronOptimizer:
    """AdamW over the chunks, its state allocated; decay on matrices only. `shards`: data ranks share the state
    (ZeRO-1), as the chunks' buffers have to say too."""
    settings = config.optimizer
    optimizer_config = OptimizerConfig(
        optimizer="adam",
        lr=settings.learning_rate,
        min_lr=0.0,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.beta1,
        adam_beta2=settings.beta2,
        adam_eps=settings.eps,
        decoupled_weight_decay=True,
        clip_grad=settings.clip_norm,
        bf16=config.precision == "bf16",
        params_dtype=torch.float32 if config.precision == "fp32" else torch.bfloat16,
        use_distributed_optimizer=shards,
    )
    (optimizer,) = get_megatron_optimizer(optimizer_config, chunks, use_gloo_process_groups=False).chained_optimizers
    for group in optimizer.param_groups:
        # megatron-core leaves this to its scheduler, which we replace: decay on biases and norms is off here.
        group["weight_decay"] = settings.weight_decay * group["wd_mult"]
        group["fused"] = True  # one pass over weights and moments; megatron-core leaves torch's default, several
    _allocate(optimizer)
    return optimizer


def set_learning_rate(optimizer: MegatronOptimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def grad_norm(optimizer: MegatronOptimizer, device: torch.device) -> float:
    """Global norm of the gradient. Collective. torch's norm of a large fp32 tensor is off on a CPU (by 7e-4 of that of
    a GPT-2's gradients), and by how much depends on how ranks share it: so blocks in fp32, and their sum in fp64."""
    squares = torch.zeros(1, dtype=torch.float64, device=device)
    for gradient in optimizer.get_main_grads_for_grad_norm():
        flat = gradient.view(-1)
        whole = flat.numel() // _BLOCK * _BLOCK
        for blocks in (flat[:whole].view(-1, _BLOCK), flat[whole:].view(1, -1)):
            squares += torch.linalg.vector_norm(blocks, dim=1).double().square().sum()
    dist.all_reduce(squares, group=optimizer.get_grad_stats_parallel_group())
    return float(squares.sqrt().float())


def clip(optimizer: MegatronOptimizer, grad_norm: float, limit: float) -> None:
    """Scales the gradient to norm `limit` if it is longer (0: never). megatron-core's own needs apex or Transformer
    Engine to do so in place."""
    if 0 < limit < grad_norm:
        nn.utils.clip_grads_with_norm_(optimizer.get_parameters(), limit, torch.tensor(grad_norm))


def set_updates(optimizer: MegatronOptimizer, updates: int) -> None:
    """Number of updates made so far, which Adam's bias correction needs."""
    for state in optimizer.optimizer.state.values():
        state["step"].fill_(float(updates))


def owned(optimizer: MegatronOptimizer) -> Iterator[Owned]:
    """The parameter ranges this rank updates."""
    for parameter, main, start in _mains(optimizer):
        state = optimizer.optimizer.state[main]
        yield Owned(parameter, main, start, state["exp_avg"], state["exp_avg_sq"])


def publish(optimizer: MegatronOptimizer) -> None:
    """Copies the fp32 weights into the model's, on every data rank."""
    if isinstance(optimizer, DistributedOptimizer):
        optimizer._copy_main_params_to_model_params()
        for chunk in optimizer.model_chunks:
            chunk.start_param_sync(force_sync=True)
    elif not isinstance(optimizer, FP32Optimizer):
        optimizer._copy_main_params_to_model_params()


def _mains(optimizer: MegatronOptimizer) -> Iterator[tuple[nn.Parameter, Tensor, int]]:
    if isinstance(optimizer, DistributedOptimizer):
        for models, mains in (
            (optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups),
            (optimizer.model_fp32_groups, optimizer.shard_fp32_groups),
        ):
            for parameter, main in _pairs(models, mains):
                yield parameter, main, optimizer._get_model_param_range_map(parameter)["param"].start
    elif isinstance(optimizer, FP32Optimizer):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                yield parameter, parameter, 0
    else:
        for models, mains in (
            (optimizer.float16_groups, optimizer.fp32_from_float16_groups),
            (optimizer.fp32_from_fp32_groups, optimizer.fp32_from_fp32_groups),
        ):
            for parameter, main in _pairs(models, mains):
                yield parameter, main, 0


def _pairs(left: list[list[Tensor]], right: list[list[Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    for left_group, right_group in zip(left, right, strict=True):
        yield from zip(left_group, right_group, strict=True)


def _allocate(optimizer: MegatronOptimizer) -> None:
    """Adam's state before the first step: zeros. torch would make it lazily, too late to load into."""
    adam = optimizer.optimizer
    for group in adam.param_groups:
        for main in group["params"]:
            adam.state[main] = {
                "step": torch.tensor(0.0, device=main.device),  # where torch's fused kernel wants it
                "exp_avg": torch.zeros_like(main, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(main, memory_format=torch.preserve_format),
            }
