"""Bytes of a training state. No torch."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from math import prod

from pretrain.config.run_config import RunConfig
from pretrain.layout.layout import Layout
from pretrain.model_spec.parameters import StageParameter, chunk_parameters, num_rank_parameters


@dataclass(frozen=True)
class StateBytes:
    """Bytes of the training state that one rank holds when a step's gradients are complete."""

    weights: float
    """bytes of the weights that the model computes with"""
    gradients: float
    optimizer: float
    """bytes of the moments of each weight, and of fp32 weights where the model does not compute with these"""

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


def state_bytes(
    parameters: float, layout: Layout, precision: str, moments: float = 2, of_experts: float = 0.0
) -> StateBytes:
    """Bytes for the `parameters` of one tensor and pipeline rank, and the number of `moments` of the optimizer for each
    of them, on average. Of those `of_experts` each expert rank holds a part.

    Gradients are accumulated in fp32 whatever the precision (Rajbhandari et al. 2020, arXiv 1910.02054, section 3, has
    half precision gradients). Not counted: activations, the buckets of an exchange, the small weights that stage 3
    keeps everywhere, and Adafactor's moments of vectors, rows and columns (4 * (rows + columns) for rows * columns
    weights). Offloaded states are counted too."""
    width = 4 if precision == "fp32" else 2
    shares = layout.zero > 0 and (layout.replicates or layout.shards_by_deepspeed)
    others, experts = parameters - of_experts, of_experts / layout.expert
    held = others + experts
    sharded = others / layout.replicas + experts / layout.expert_replicas if shares else held
    copies = precision != "fp32" or layout.shards_by_deepspeed
    return StateBytes(
        weights=width * (sharded if layout.zero == 3 else held),
        gradients=4 * (sharded if layout.zero >= 2 else held),
        optimizer=4 * (moments + copies) * sharded,
    )


def build_bytes(layout: Layout, precision: str) -> float:
    """Bytes for each parameter of a rank while megatron-core's ZeRO 1 is built: weights are copied into the buffer that
    replaces them, beside the buffer of gradients, before the optimizer's states exist. 0 for other engines and stages,
    which hold no more than in a step."""
    shares = layout.zero == 1 and layout.replicates and not layout.shards_by_deepspeed
    return 2 * (4 if precision == "fp32" else 2) + 4 if shares else 0.0


def trained_state(
    parameters: float,
    trained: float,
    layout: Layout,
    precision: str,
    *,
    moments: float = 2,
    of_experts: tuple[float, float] = (0.0, 0.0),
) -> StateBytes:
    """`state_bytes` where only `trained` of the `parameters` have gradients and optimizer states; `of_experts`: how
    many of the former and of the latter expert ranks share. The fp32 values of frozen ones beside weights in half
    precision are in host memory, and not counted."""
    every, updated = (
        state_bytes(count, layout, precision, moments, shared)
        for count, shared in zip((parameters, trained), of_experts, strict=True)
    )
    return StateBytes(weights=every.weights, gradients=updated.gradients, optimizer=updated.optimizer)


def mean_moments(config: RunConfig, chunks: Iterable[Iterable[StageParameter]], tensor: int) -> float:
    """Values that the optimizer keeps for each trained parameter of `chunks` on one of `tensor` ranks, on average."""
    sizes, moments = 0, 0
    for spec in (held.spec for chunk in chunks for held in chunk if held.spec.trained):
        size = prod(spec.local_shape(dict.fromkeys(("tensor", "expert_tensor"), tensor)))
        sizes += size
        moments += size * config.optimizer.moments_of(spec.blocks is not None)
    return moments / sizes if sizes else 0.0


def largest_state(config: RunConfig, layout: Layout) -> StateBytes:
    """Training state of the rank that holds the most. What `state_bytes` leaves out is left out here too."""
    states = []
    for stage in range(layout.pipeline):
        count = partial(num_rank_parameters, config.model, layout, stage)
        states.append(
            trained_state(
                count(),
                count(trained=True),
                layout,
                config.precision,
                moments=mean_moments(
                    config, chunk_parameters(config.model, layout)[stage :: layout.pipeline], layout.tensor
                ),
                of_experts=(count(of_experts=True), count(trained=True, of_experts=True)),
            )
        )
    return max(states, key=lambda state: state.total)
