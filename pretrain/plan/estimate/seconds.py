"""Seconds of one optimizer step, part by part."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrain.plan.estimate import compute, traffic
from pretrain.plan.estimate.constants import Constants
from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.tensor_traffic import layer_bytes
from pretrain.plan.estimate.workload import StepWorkload

_ALIKE = 0.01  # of a step: a fifth of the median error, so that no estimate tells these apart


@dataclass(frozen=True, kw_only=True)
class StepSeconds:
    """Seconds of the slowest stage, which the others wait for, [n]."""

    compute: Array
    """matrix products, attention and memory-bound work of its layers, without recomputation"""
    recompute: Array
    head: Array
    """embedding, logits and loss, as far as the slowest stage has them"""
    tensor: Array
    context: Array
    expert: Array
    """rows of tokens that travel to the ranks of their experts and back"""
    pipeline: Array
    bubble: Array
    replicas: Array
    """gradients and weights between data ranks, as far as nothing hides them"""
    update: Array
    rest: Array
    """the step's own fixed time, and waiting for the slowest rank"""

    @property
    def total(self) -> Array:
        return sum((getattr(self, name) for name in self.__dataclass_fields__), np.zeros_like(self.compute))


def step_seconds(work: StepWorkload, c: Constants, factor: Array | float = 1.0) -> StepSeconds:
    """Estimates a step of each layout. `factor`: the software stack's, on the seconds of everything that devices
    compute. Models of a step pass one after the other."""
    passes = [_model_seconds(one, c, factor) for one in work.models]
    nothing = np.zeros_like(work.model.hidden)
    parts = {name: sum((one[name] for one in passes), nothing) for name in passes[0]}
    known = sum(parts.values(), nothing)
    machines = np.maximum(1.0, work.layout.world / work.device.per_node)
    return StepSeconds(**parts, rest=c.step_s + known * c.straggler * np.log2(machines))


def _model_seconds(work: StepWorkload, c: Constants, factor: Array | float) -> dict[str, Array]:
    """The parts of `StepSeconds` without the rest, of one model.

    One stage works on a micro-batch at a time, first forward and then backward (1F1B, Narayanan et al. 2021, arXiv
    2104.04473, section 2.2): the slowest stage works on all of them, and waits while the first one passes through the
    others, of which `virtual` chunks pass at once.

    Not counted: inputs gathered again under sequence parallelism, and the sums of embeddings, of the logits' gradient
    and of weights that several stages hold. A fit that counts them is no nearer to models and stacks that it has not
    seen (docs/plan.md)."""
    at, stages = traffic.links(work, c), work.stages
    forward, backward, recomputed, tensor, context, expert = (np.zeros_like(stages.count) for _ in range(6))
    for stack in work.stacks:
        passes = compute.layers(work, c, stack)
        forward += passes.forward
        backward += passes.backward
        recomputed += passes.repeated
        tensor += traffic.tensor_seconds(work, c, at, layer_bytes(work, stack, gathers_again=False))
        exchanged = traffic.context(work, c, at, stack)
        context += exchanged[:, None] * traffic.context_passes(work, stack)
        expert += traffic.expert_seconds(work, c, stack)
    factor = np.broadcast_to(np.asarray(factor, float), work.model.hidden.shape)[:, None]
    ends = compute.embedding(work, c) + compute.head(work, c) + compute.comparison(work, c)
    forward, backward, recomputed, ends = (factor * part for part in (forward, backward, recomputed, ends))
    sent = np.broadcast_to(traffic.pipeline(work, c, at)[:, None], stages.count.shape)

    per_step, per_micro = traffic.exchange(work, at)
    once = forward + backward + recomputed + ends + tensor + context + expert + sent
    # Weights of ZeRO-3 are gathered while layers compute: what takes longer counts, and a little of the other.
    sharp = c.overlap_sharpness
    gathered = (once**sharp + per_micro**sharp) ** (1 / sharp) - once
    stage = once + gathered
    rows = np.arange(len(stage))
    slowest = np.argmax(np.where(stages.count > 0, stage, -1.0), axis=1)

    def slowest_part(part: Array) -> Array:
        picked: Array = part[rows, slowest]
        return picked

    micro_batches, longest = work.micro_batches, slowest_part(stage)
    passing = (stages.count * stage).sum(axis=1) - longest
    window = slowest_part(backward)
    unhidden = c.replica_exposed * slowest_part(per_step) + np.maximum(
        0.0, (1 - c.replica_exposed) * slowest_part(per_step) - window
    )
    exchanged = traffic.block_bytes(work) / np.minimum(at.replicas, at.tensor)[:, None]
    update = (compute.update(work, c) + exchanged).max(axis=1)
    return {
        "compute": micro_batches * slowest_part(forward + backward),
        "recompute": micro_batches * slowest_part(recomputed),
        "head": micro_batches * slowest_part(ends),
        "tensor": micro_batches * slowest_part(tensor),
        "context": micro_batches * slowest_part(context),
        "expert": micro_batches * slowest_part(expert),
        "pipeline": micro_batches * slowest_part(sent),
        "bubble": c.bubble_share * passing / work.layout.virtual,
        "replicas": unhidden + micro_batches * slowest_part(gathered),
        "update": update,
    }


def fastest_first(seconds: Array, micro_batches: Array) -> NDArray[np.intp]:
    """Indices by seconds of a step. Of those that no estimate tells from the fastest, the one with the fewest
    micro-batches comes first: what the estimate may not know of, each message and start of a kernel, happens less."""
    alike = seconds <= (1 + _ALIKE) * seconds.min(initial=np.inf)
    order: NDArray[np.intp] = np.lexsort((seconds, np.where(alike, micro_batches, np.inf)))
    return order
