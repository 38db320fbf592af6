"""Workload of one optimizer step, for any number of layouts at once: arrays [n] have an entry for each layout, arrays
[n, s] one for each kind of pipeline stage as well. Estimates read nothing else, so that a config (`builder.py`), a
published measurement and a search over thousands of layouts all go through the same arithmetic."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrain.model_spec.gradients import PRODUCTS
from pretrain.plan.estimate.constants import Constants
from pretrain.plan.estimate.entries import Array, Entries, Product
from pretrain.plan.estimate.shapes import AttentionShapes, ComparisonShapes, KernelShapes, ModelShapes
from pretrain.plan.estimate.step_settings import DeviceSpeeds, LayoutSizes, StageShapes, StepSettings


@dataclass(frozen=True)
class TensorBytes:
    """Bytes that a rank sends to other tensor ranks for a micro-batch, [n]."""

    forward: Array
    backward: Array
    repeated: Array
    """bytes of `backward` that gather inputs again, while gradients are multiplied"""


class LayerWork:
    """Work of a part of layers: what it computes, keeps and sends beside what other layers do, or in its place, on one
    rank and for one micro-batch, [n]. This one: nothing."""

    @property
    def ffn(self) -> float | None:
        """Features of a feed-forward layer that every position passes through, in place of the model's."""
        return None

    @property
    def features(self) -> float:
        """Features of feed-forward layers that a position passes through beside `LayerStack.ffn`."""
        return 0.0

    def qkv_product(self, work: "StepWorkload", stack: "LayerStack") -> Product | None:
        """In place of the product that makes queries, keys and values."""
        return None

    def products(self, work: "StepWorkload", stack: "LayerStack") -> Iterable[tuple[str, Product]]:
        """Products, each with the name of the product of other layers whose gradients it has."""
        return ()

    def seconds(
        self, work: "StepWorkload", c: Constants, stack: "LayerStack"
    ) -> tuple[Array, Array] | None:  # fmt: skip
        """Seconds forward, [n], and backward in all layers, [n, s], of all else that is computed and moved."""
        return None

    def operations(self, work: "StepWorkload", passes: "LayerPasses") -> Iterable[Array]:
        """Operations in all layers of a stack, [n, s], of what `seconds` are of."""
        return ()

    def kept_bytes(self, work: "StepWorkload", stack: "LayerStack", keeps: Callable[[str], Array]) -> Array | float:
        """Bytes that a layer keeps besides others and `features`. `keeps` says whether it keeps a product's input."""
        return 0.0

    def attention_bytes(self, work: "StepWorkload", stack: "LayerStack") -> Array | None:
        """In place of what a layer keeps between its input and the output of attention."""
        return None

    def kept_when_recomputed(self, work: "StepWorkload", stack: "LayerStack") -> Array | float:
        """Bytes that a layer which is recomputed keeps beside its input."""
        return 0.0

    def gradient_bytes(self, work: "StepWorkload", stack: "LayerStack") -> Array | float:
        """Most bytes that the backward pass of its feed-forward layer has beside all that the layer keeps."""
        return 0.0

    def sums(self, work: "StepWorkload", stack: "LayerStack") -> tuple[Array | float, Array | float]:
        """Times more that tensor ranks sum hidden states, and that the backward pass gathers inputs again."""
        return 0.0, 0.0

    def sent_bytes(self, work: "StepWorkload", stack: "LayerStack") -> tuple[Array | float, Array | float]:
        """Bytes forward and backward that a rank sends to other tensor ranks beside hidden states."""
        return 0.0, 0.0

    def exchanged_widths(self, work: "StepWorkload") -> tuple[Array, Array] | None:
        """Features of each position that tensor ranks exchange in place of a layer's input, and those of them that they
        gather again for gradients of weights."""
        return None

    def update_rows(self, work: "StepWorkload", stack: "LayerStack") -> Array | float:
        """Rows of which tensor ranks sum what low-rank updates of `fc2`, and of `fc1` backward, make by A."""
        return 0.0

    def replicated_values(self, work: "StepWorkload") -> Iterable[tuple[str, Array]]:
        """Parameters whose gradients each tensor rank has of its own positions alone, with the name of a product that
        is trained with them."""
        return ()

    def routed_bytes(self, work: "StepWorkload", stack: "LayerStack") -> tuple[Array | float, Array | float]:
        """Bytes forward and backward that a rank has for all ranks that share experts, itself included."""
        return 0.0, 0.0

    def routed_messages(self) -> tuple[float, float]:
        """Messages of these forward, and in the backward pass without what is computed again."""
        return 0.0, 0.0


@dataclass(frozen=True, kw_only=True)
class LayerStack(Entries):
    """Identical layers: those of an encoder, of a decoder, or of a source encoder."""

    layers: Array
    """layers on a stage of each kind, [n, s]; one that is used several times counts as several"""
    backward_layers: Array
    """layers among them with a backward pass: the others lie below everything that is trained, [n, s]"""
    input_gradients: Array
    """layers among them in which the input of each product has a gradient, [n, PRODUCTS, s]"""
    weight_gradients: Array
    """layers among them in which each product's own weight has a gradient, [n, PRODUCTS, s]"""
    lora_ranks: Array
    """rank of the update beside each product's weight; 0: none, [n, PRODUCTS]"""
    ffn: Array
    """features of the feed-forward layer that every position passes through; 0: there is none, [n]"""
    length: Array
    """positions of a sequence, [n]"""
    keys: Array
    """keys that a query sees, averaged over positions and layers, [n]"""
    computed_keys: Array
    """keys that a fused kernel computes a query's scores of, averaged alike, [n]"""
    encoder_length: Array
    """positions of the encoder that a decoder's layers attend to; 0: none, [n]"""
    travels: Array
    """1: stages send its states on; 0: of a source encoder, which is on the first stage, or behind the last one, or
    those of the stack before it, [n]"""
    ends_in_norm: Array
    """1 if a norm may follow its last layer, 0 if another stack continues with its states, [n]"""
    parts: tuple[LayerWork, ...] = ()
    """work of its layers beside that of others, or in its place"""

    @property
    def active_ffn(self) -> Array:
        """Features of all feed-forward layers that a position passes through, [n]."""
        return self.ffn + sum(part.features for part in self.parts)

    @property
    def trained_layers(self) -> Array:
        """Layers whose matrices are trained, [n, s]."""
        return self.with_weight_gradient("qkv")

    def with_input_gradient(self, product: str) -> Array:
        """Layers in which the input of `product` has a gradient, [n, s]."""
        of_product: Array = self.input_gradients[:, PRODUCTS.index(product)]
        return of_product

    def with_weight_gradient(self, product: str) -> Array:
        """Layers in which the weight of `product` has a gradient, [n, s]."""
        of_product: Array = self.weight_gradients[:, PRODUCTS.index(product)]
        return of_product

    def lora_rank(self, product: str) -> Array:
        """Rank of the update of `product`, [n]."""
        rank: Array = self.lora_ranks[:, PRODUCTS.index(product)]
        return rank


@dataclass(frozen=True)
class LayerPasses:
    """Times that the layers of a stack compute a product, [n, s]."""

    stack: LayerStack
    full: NDArray[np.bool_]
    """whether layers are recomputed, [n, 1]"""

    @property
    def computed(self) -> Array:
        """Times forward."""
        found: Array = self.stack.layers + self.full * self.stack.backward_layers
        return found

    def with_input_gradient(self, product: str) -> Array:
        """Times that the gradient of its input is made: what is recomputed has that of its layer's input."""
        found = self.stack.with_input_gradient(product)
        return found if product == "distances" else np.where(self.full, self.stack.backward_layers, found)

    def of(self, product: str) -> Array:
        """Times in all."""
        return self.computed + self.with_input_gradient(product) + self.stack.with_weight_gradient(product)

    def update_counts(self, product: str) -> tuple[Array, Array]:
        """Times that its low-rank update multiplies by A, and by B."""
        backward = self.stack.backward_layers
        return self.computed + self.with_input_gradient(product) + backward, self.computed + 2 * backward


@dataclass(frozen=True, kw_only=True)
class StepWorkload(Entries):
    """Workload of a step: the model, its split into stages, the layout, and the kernels and devices that run it."""

    model: ModelShapes
    stacks: tuple[LayerStack, ...]
    stages: StageShapes
    layout: LayoutSizes
    step: StepSettings
    attention: AttentionShapes
    comparison: ComparisonShapes
    kernels: KernelShapes
    device: DeviceSpeeds
    others: tuple["StepWorkload", ...] = ()
    """a second model, which reads the micro-batches of a step before this one does: a generator or a frozen teacher,
    whose `model.vocabulary` is 0 where nobody reads its predictions, so that it makes no logits"""

    @property
    def models(self) -> tuple["StepWorkload", ...]:
        """The workload of each model of the step."""
        return self, *self.others

    @property
    def micro_batches(self) -> Array:
        """Micro-batches that each rank processes in a step."""
        return self.step.sequences / (self.layout.data * self.step.micro_sequences)

    @property
    def length(self) -> Array:
        """Positions of a sequence, of both stacks together: what travels between stages."""
        return sum((stack.length * stack.travels for stack in self.stacks), np.zeros_like(self.model.hidden))

    @property
    def source_length(self) -> Array:
        """Positions of a sequence that a source encoder reads; 0: there is none."""
        return self.stacks[0].length * (1 - self.stacks[0].travels)

    @property
    def parameters(self) -> Array:
        """Parameters that one rank of a stage holds, [n, s], without sharding over its replicas."""
        stages = self.stages
        return self._held(stages.sharded_parameters, stages.replicated_parameters, stages.expert_parameters)

    @property
    def trained(self) -> Array:
        """Trained parameters among `parameters`: those with gradients and optimizer states."""
        stages = self.stages
        return self._held(stages.sharded_trained, stages.replicated_trained, stages.expert_trained)

    @property
    def expert_trained(self) -> Array:
        """Parameters of experts among `trained`, which expert ranks share."""
        return self._expert_values(self.stages.expert_trained)

    @property
    def divided(self) -> Array:
        """Trained parameters of which each of a rank's replicas has an equal share under ZeRO, [n, s]. A rank that
        holds some of the experts shares them with fewer ranks: its share is that of all experts with all replicas."""
        stages = self.stages
        return self._divided(stages.sharded_trained, stages.replicated_trained, stages.expert_trained)

    @property
    def moments(self) -> Array:
        """Values that the optimizer keeps, [n, s]: under ZeRO of `divided`, otherwise of `trained`."""
        stages = self.stages
        values = stages.sharded_moments, stages.replicated_moments, stages.expert_moments
        return np.where(self.layout.zero[:, None] > 0, self._divided(*values), self._held(*values))

    def _divided(self, sharded: Array, replicated: Array, of_experts: Array) -> Array:
        """`divided` of such values as of `_held`."""
        held = of_experts[:, 1] * (1 - 1 / self.layout.expert_slices)[:, None]  # which tensor ranks do not have alike
        found: Array = sharded / self.layout.tensor[:, None] + replicated - held
        return found

    def _held(self, sharded: Array, replicated: Array, of_experts: Array) -> Array:
        """Values that a rank holds, [n, s], of those that tensor ranks split or all of them hold, but for `of_experts`,
        [n, 2, s], which expert ranks do."""
        split, held = of_experts.swapaxes(0, 1)
        others = (sharded - split) / self.layout.tensor[:, None] + replicated - held
        found: Array = others + self._expert_values(of_experts)
        return found

    def _expert_values(self, values: Array) -> Array:
        """Values of experts that a rank holds, [n, s], of those that the ranks split which share an expert's features,
        and of those that all of these hold, [n, 2, s]."""
        split, held = values.swapaxes(0, 1)
        found: Array = (split / self.layout.expert_tensor[:, None] + held) / self.layout.expert[:, None]
        return found

    @property
    def in_flight(self) -> Array:
        """Most micro-batches, each of one chunk of a stage, whose activations the stage holds at once, [n, s]: those
        forwarded before the first backward pass, and one more (Narayanan et al. 2021, arXiv 2104.04473, section 2.2;
        interleaved as megatron-core does)."""
        pipeline, virtual = self.layout.pipeline[:, None], self.layout.virtual[:, None]
        after = pipeline - 1 - self.stages.position
        plain = after + 1
        interleaved = 2 * after + (virtual - 1) * pipeline + 1
        every = self.micro_batches[:, None] * virtual
        return np.minimum(np.where(virtual > 1, interleaved, plain), every)

    @property
    def kept_score_biases(self) -> Array:
        """Distance biases that each layer keeps for every score."""
        return np.where(self.attention.shared_score_masks > 0, 0.0, self.attention.score_biases)

    @property
    def tied_parameters(self) -> Array:
        """Values of an embedding that makes the logits of the same stage, too, [n, s]."""
        table = self.model.ties_output * self.model.vocabulary * self.model.embedding_dim / self.layout.tensor
        return table[:, None] * self.stages.embeds * self.stages.predicts

    @property
    def logit_columns(self) -> Array:
        """Vocabulary entries whose logits a rank holds, or answers of a task head."""
        logits = self.model.vocabulary / np.where(self.kernels.logits_sharded > 0, self.layout.tensor, 1.0)
        return np.where(self.model.answers > 0, self.model.answers, logits)
