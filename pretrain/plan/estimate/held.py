"""Bytes that a rank holds at most, each part apart, of any number of layouts at once.

Weights, gradients and optimizer states are `plan/memory.py`'s. Activations are counted tensor by tensor, as autograd
saves them; `tests/multirank/test_activation_memory.py` holds the counts to what ranks measure."""

from dataclasses import dataclass, replace

import numpy as np

from pretrain.plan.estimate.constants import Constants
from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.held_in_forward import forward_bytes
from pretrain.plan.estimate.kept_by_layers import bytes_beside_first, saved_by_layers, shared_gradients
from pretrain.plan.estimate.kept_by_loss import compared_bytes, kept_states, loss_bytes
from pretrain.plan.estimate.products import hidden_bytes, norm_tensors
from pretrain.plan.estimate.workload import StepWorkload


@dataclass(frozen=True, kw_only=True)
class HeldBytes:
    """Bytes that a rank on a stage of each kind holds, [n, s]."""

    weights: Array
    gradients: Array
    optimizer: Array
    activations: Array
    """bytes saved for the backward passes of all micro-batches in flight"""
    working: Array
    """bytes saved of the layer that is recomputed, or of logits and loss, which never exist at the same time"""
    buffers: Array
    """bytes of weights while they are gathered, of messages in flight, of buckets of gradients, of what lives for a
    moment beside what is saved, and of what libraries and the allocator keep"""
    memory: Array
    """bytes of what layers have read of the rows before: of no model that is planned"""
    building: Array
    """bytes that building the model takes beyond all of these; 0: a step takes more"""

    @property
    def total(self) -> Array:
        return sum((getattr(self, name) for name in self.__dataclass_fields__), np.zeros_like(self.weights))

    @property
    def fullest(self) -> Array:
        """Bytes of the stage that holds the most, [n]."""
        most: Array = self.total.max(axis=1)
        return most

    @property
    def on_fullest(self) -> "HeldBytes":
        """Bytes by part on the fullest stage alone, [n, 1]."""
        stages = self.total.argmax(axis=1)[:, None]
        parts = {name: np.take_along_axis(getattr(self, name), stages, 1) for name in self.__dataclass_fields__}
        return HeldBytes(**parts)

    def fullest_stage(self, index: int) -> dict[str, float]:
        """Bytes by part on the fullest stage of the layout at `index`."""
        stage = int(self.total[index].argmax())
        return {name: float(getattr(self, name)[index, stage]) for name in self.__dataclass_fields__}


def held_bytes(work: StepWorkload, c: Constants, overhead: bool = True) -> HeldBytes:
    """Bytes that each layout holds. `overhead`: include the device's own, which host memory does not have. With a
    second model, the states of both are there at once, and the activations of one: the pass of a generator is over when
    that of its model begins. That of a teacher keeps nothing of its layers, and is not counted."""
    of_model = [_model_bytes(one) for one in work.models]
    passes = of_model[0]
    for second, other in zip(of_model[1:], work.others, strict=True):
        takes = (other.step.trains > 0)[:, None] & (second.in_pass > passes.in_pass)
        names = ("activations", "working", "buffers", "split")
        passes = replace(
            passes, **{name: np.where(takes, getattr(second, name), getattr(passes, name)) for name in names}
        )
    weights, gradients, optimizer, built = (
        sum((getattr(one, name) for one in of_model), np.zeros_like(passes.weights))
        for name in ("weights", "gradients", "optimizer", "built")
    )
    library_bytes = c.overhead_gib * 2**30 if overhead else 0.0
    buffers = passes.buffers + library_bytes + (c.fragments * passes.split if overhead else 0.0)
    in_step = weights + gradients + optimizer + passes.activations + passes.working + buffers
    return HeldBytes(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=passes.activations,
        working=passes.working,
        buffers=buffers,
        memory=np.zeros_like(weights),
        building=np.where(built > 0, np.maximum(built + library_bytes - in_step, 0.0), 0.0),
    )


@dataclass(frozen=True, kw_only=True)
class _ModelBytes:
    """Bytes of one model, [n, s], without what libraries and the allocator keep. See `HeldBytes`."""

    weights: Array
    gradients: Array
    optimizer: Array
    activations: Array
    working: Array
    buffers: Array
    split: Array
    """bytes of what is made and released in each step, of which the allocator keeps fragments"""
    built: Array
    """bytes while the model is built; 0: no more than a step takes"""

    @property
    def in_pass(self) -> Array:
        """Bytes of the model's pass alone."""
        return self.activations + self.working + self.buffers


def _model_bytes(work: StepWorkload) -> _ModelBytes:
    layout, step, parameters = work.layout, work.step, work.parameters
    replicas, zero = layout.replicas[:, None], layout.zero[:, None]
    shards_weights = zero == 3
    resident = np.where(shards_weights, parameters / replicas, parameters)
    saved, recomputed, with_gradients = saved_by_layers(work)
    saved = saved + _further_bytes(work)
    saved_loss, loss, left = (work.stages.predicts * part[:, None] for part in loss_bytes(work))
    working = np.maximum(recomputed, saved_loss)
    masks = work.kernels.dropout_bytes / step.activation_bytes
    embedded = hidden_bytes(work, work.stacks[0].length) * (masks + work.model.embedding_norm * norm_tensors(work))
    # What is recomputed is with the first layer.
    embedded = embedded + (step.recompute < 2) * bytes_beside_first(work)
    embedded = embedded * (1 + (work.source_length > 0))  # a source encoder has an embedding of its own
    first = embedded[:, None] * work.stages.trains_embedding * work.in_flight
    layers = np.maximum(sum((stack.layers for stack in work.stacks), np.zeros_like(work.stages.count)), 1)
    # Stage 3 gathers the weights of a layer, and of the next one.
    gathered_weights = 2 * step.activation_bytes[:, None] * (parameters - resident) / layers
    gathered = np.where(shards_weights, gathered_weights, 0.0)
    messages = 2 * hidden_bytes(work, work.length)[:, None] * (layout.pipeline > 1)[:, None]
    # Under DeepSpeed, a bucket is copied while layers are on their way back. At the end, only the embedding is left of
    # a micro-batch, beside what is saved of others that are in flight.
    table = (step.table_copies * work.model.vocabulary / layout.tensor * work.model.embedding_dim)[:, None]
    at_end = table * work.stages.embeds - (saved + first) / np.maximum(work.in_flight, 1) - gathered
    # No bucket is full when the first layer begins its backward pass.
    bucket_copies = step.bucket_copy_bytes[:, None]
    in_layers = np.maximum(with_gradients, recomputed + bucket_copies)
    # A tied embedding's gradient waits for that of its lookup.
    in_layers = (
        in_layers + (work.model.trains_output * work.kernels.head_gradient_bytes)[:, None] * work.tied_parameters
    )
    in_layers = in_layers + shared_gradients(work)[:, None]
    in_forward = forward_bytes(work, saved + first, messages)
    compared = work.stages.predicts * compared_bytes(work)[:, None]
    compared = compared + (compared > 0) * left
    copies = np.maximum(np.maximum.reduce([in_layers, at_end, loss, in_forward, compared]) - working, 0.0)
    frozen = step.weight_bytes[:, None] * (parameters - work.trained)
    builds = (parameters > 0) & (step.build_bytes[:, None] > 0)
    return _ModelBytes(
        weights=step.weight_bytes[:, None] * parameters,
        gradients=step.gradient_bytes[:, None] * np.where(zero >= 2, work.divided, work.trained),
        optimizer=step.main_bytes[:, None] * np.where(zero >= 1, work.divided, work.trained)
        + step.moment_bytes[:, None] * work.moments,
        activations=saved + first + kept_states(work),
        working=working,
        buffers=gathered + messages + step.bucket_bytes[:, None] + copies,
        split=saved + np.maximum(working, loss),
        built=np.where(builds, step.build_bytes[:, None] * work.trained + frozen, 0.0),
    )


def _further_bytes(work: StepWorkload) -> Array:
    """Bytes that further predictions save for all micro-batches in flight beside their layers and logits, [n, s]: the
    embeddings that travel with the states of each chunk; and of the one micro-batch in the last chunk, unless
    recomputed, these behind the layers, and joined to states for each projection."""
    model, stages = work.model, work.stages
    travelling = (model.further * hidden_bytes(work, model.label_length))[:, None]
    kept = np.where(work.step.recompute < 2, 3.0, 0.0)[:, None] * stages.predicts
    return travelling * ((stages.count > 0) * work.in_flight + kept)
