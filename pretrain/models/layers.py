"""The layers of one pipeline chunk, each on its part of the stream."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from megatron.core import tensor_parallel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_layer import (
    TransformerLayer,
    TransformerLayerSubmodules,
    get_transformer_layer_offset,
)
from megatron.core.utils import make_viewless_tensor
from torch import Tensor, nn

from pretrain.attention.cache import KeyValueCache, Pair
from pretrain.attention.core import AttentionInputs
from pretrain.config.model import Model
from pretrain.model_spec.modules import is_in_common
from pretrain.models.blocks import layer_parts
from pretrain.models.embeddings import table_of
from pretrain.models.hidden_dropout import HiddenDropout
from pretrain.models.inputs import PreviousRows
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.part_modules import modules_of
from pretrain.models.route_terms import LayerRoutes, MicroBatchRoutes
from pretrain.models.slots import DistanceInputs
from pretrain.models.stream import Part, Stream

Final = Callable[[MegatronConfig], nn.Module]
"""makes what follows the last layer of a pre-norm stack"""


@dataclass(frozen=True)
class LayerInputs:
    """Inputs of the layers of a call besides the stream."""

    stream: Stream
    own: Mapping[str, AttentionInputs]
    """inputs of each stack's self-attention"""
    memory: AttentionInputs | None = None
    """inputs of the decoder's cross-attention"""
    cache: KeyValueCache | None = None
    before: PreviousRows | None = None
    """hidden states of the rows before these, for layers that read them"""
    routes: MicroBatchRoutes | None = field(default=None, kw_only=True)
    """extra tasks of layers of experts, besides computing"""


class FinalNorm(nn.Module):
    """A norm, with dropout behind it (T5)."""

    def __init__(self, megatron: MegatronConfig) -> None:
        super().__init__()
        self.norm, self.dropout = megatron.make_norm(), HiddenDropout(megatron)

    def forward(self, x_SBH: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.norm(x_SBH))
        return out


class Layer(TransformerLayer):
    """megatron-core's layer, of sublayers that are called here, on its part of the stream. It is named by its number in
    its stack."""

    def __init__(
        self, config: MegatronConfig, submodules: TransformerLayerSubmodules, model: Model, final: Final, **where: Any
    ) -> None:
        super().__init__(config, submodules, **where)
        encoder_layers, decoder_layers = model.stacks
        self.part: Literal["encoder", "decoder"] = "encoder" if self.layer_number <= encoder_layers else "decoder"
        number = self.layer_number - 1 - (0 if self.part == "encoder" else encoder_layers)
        self.global_name = f"{self.part}.layers.{number}"
        self.model, self.reads_memory = model, self.part == "decoder" and model.has_encoder
        last = self.layer_number in (encoder_layers, encoder_layers + decoder_layers)
        self.final = final(config) if last and model.norm_first else None
        found = (part.beside_layer(model, config, self.layer_number - 1) for part in modules_of(model))
        self.beside = dict(filter(None, found))
        for name, module in self.beside.items():
            self.add_module(name, module)

    def forward(self, x_PBH: Tensor, *others: Tensor, inputs: LayerInputs) -> Tensor:
        """Its part of the stream, after this layer's work; `others` are what `others_of` chooses."""
        given = list(others)
        memory: Tensor | Pair | None = None
        if self.reads_memory:
            memory = given.pop(0) if inputs.cache is None else self._remembered(inputs.cache)
        own, cache = inputs.own[self.part], inputs.cache if self.part == "decoder" else None
        if inputs.before is not None:
            own = replace(own, memory_MBH=inputs.before.exchange(self.global_name, x_PBH))
        if cache is not None:
            own = replace(own, cache=cache[self.layer_number])
        x = self._sublayer(
            "self_attn", self.input_layernorm, self.self_attention, x_PBH,
            attention_mask=own, attention_bias=self._bias_inputs(given),
        )  # fmt: skip
        if self.reads_memory:
            x = self._sublayer(
                "cross_attn", self.pre_cross_attn_layernorm, self.cross_attention, x,
                attention_mask=inputs.memory, key_value_states=memory,
            )  # fmt: skip
        x = self._sublayer("mlp", self.pre_mlp_layernorm, self.mlp, x, routes=self._routes(inputs, len(x_PBH)))
        for module in self.beside.values():
            x = module(x_PBH, x, own)
        if self.final is not None:
            x = self.final(x)
        return x

    def _sublayer(self, name: str, norm: nn.Module, compute: nn.Module, x_PBH: Tensor, **named: Any) -> Tensor:
        """x + compute(norm(x)), where the residual connection is that of sublayer `name`. A norm may return the
        residual besides, whose gradient it then adds to its own, as in megatron-core from 0.17 on."""
        found = norm(x_PBH)
        normed, residual = found if isinstance(found, tuple) else (found, x_PBH)
        connect = getattr(self, f"{name}_bda")(self.training, False)
        out: Tensor = connect(compute(normed, **named), residual, self.hidden_dropout)
        return out

    def _routes(self, inputs: LayerInputs, positions: int) -> LayerRoutes | None:
        """Extra tasks of its feed-forward layer with this rank's `positions` of each row, besides computing them; None:
        it has none."""
        if inputs.routes is None or not getattr(self.mlp, "reads_routes", False):
            return None
        slices_before = self.tp_group.rank() if self.config.sequence_parallel else 0
        return inputs.routes.layer_routes(self.global_name, slices_before * positions, positions)

    def _bias_inputs(self, given: list[Tensor]) -> Tensor | DistanceInputs | None:
        """Input of attention for its scores: T5's table, or vectors of distances; None: there is none."""
        if not given:
            return None
        if self.model.positions.distance_linears:
            return DistanceInputs(*given)
        table = table_of(given[0], self.part, self.model, self.tp_group.size())
        # A part of it says so by itself except in the first pass of a layer that is recomputed.
        return table if table.requires_grad else table.requires_grad_(given[0].requires_grad)

    @property
    def is_trained(self) -> bool:
        """Whether it has a parameter that is trained."""
        return any(parameter.requires_grad for parameter in self.parameters())

    def others_of(self, parts: Mapping[Part, Tensor]) -> list[Tensor]:
        """The parts of the stream that it reads besides its own."""
        names: list[Part] = ["encoder", "tables"] if self.reads_memory else ["tables"]
        return [parts[name] for name in names if name in parts]

    def _remembered(self, cache: KeyValueCache) -> Pair:
        memory = cache[self.layer_number].memory
        assert memory is not None, "decoding begins with the encoder's work"
        return memory


def share(layer: Layer, first: Layer, shares: Callable[[str], bool] | None = None) -> None:
    """Gives `layer` the parameters of `first`: all, or those whose names in a layer it `shares`. What else it has
    stays its own: its number, so its attention pattern and dropout, and the norm behind the last one."""
    for name, value in list(first.named_parameters(remove_duplicate=False)):
        module, _, leaf = name.rpartition(".")
        if not name.startswith("final.") and (shares is None or shares(name)):
            setattr(layer.get_submodule(module), leaf, value)


class Layers(nn.Module):
    """The layers of one chunk. Runs those whose part is in the stream; recomputes them one at a time if the config says
    so."""

    def __init__(
        self,
        model: Model,
        megatron: MegatronConfig,
        chunk: int | None,
        final: Final,
        last: bool,
        count: int | None = None,
    ) -> None:
        """`last`: it is followed by the head. `count`: number of layers; None: those of the chunk."""
        super().__init__()
        begin, groups = get_transformer_layer_offset(megatron, chunk), ProcessGroupCollection.use_mpu_process_groups()
        layers: list[Layer] = []

        def build(index: int) -> Layer:
            parts = self.submodules(model, megatron, begin + index)
            spec = ModuleSpec(Layer, {"model": model, "final": final}, parts)
            made: Layer = build_module(
                spec, config=megatron, layer_number=index + 1, pg_collection=groups, vp_stage=chunk
            )
            return made

        for index in range(get_num_layers_to_build(megatron, chunk) if count is None else count):
            layer = build(index)
            if (first := next((before for before in layers if before.part == layer.part), None)) is not None:
                share(layer, first, None if model.shared_layers else partial(is_in_common, model))
            if model.tie_encoder_decoder and index >= model.stacks[0]:  # elsewhere its layer is on another stage
                share(layer, layers[index - model.stacks[0]])
            layers.append(layer)
        self.layers = nn.ModuleList(layers)
        tables = (part.table(model, megatron, begin) for part in modules_of(model))
        self.table = next(filter(None, tables), None)
        self.last: nn.Module | None = None
        if last and model.last_layer_uses:
            after = [build(len(layers) - 1) for _ in range(model.last_layer_uses - 1)]
            for layer in after:
                share(layer, layers[-1])
            uses = (part.last_layer(model, megatron, after) for part in modules_of(model))
            self.last = next(filter(None, uses))
        self.recomputes = megatron.recompute_granularity == "full"

    def submodules(self, model: Model, megatron: MegatronConfig, number: int) -> TransformerLayerSubmodules:
        """Submodules of layer `number` of all, encoder layers first."""
        encoder_layers = model.stacks[0]
        if number < encoder_layers:
            return layer_parts(model, megatron, "encoder", number)
        return layer_parts(model, megatron, "decoder", number - encoder_layers)

    def forward(self, stream_PBH: Tensor, inputs: LayerInputs, head: bool = True) -> Tensor:
        """The stream, after this chunk's layers. `head`: the head reads it, if the chunk has one."""
        # megatron-core's schedules free what is sent, which a view would keep.
        stream: Tensor = make_viewless_tensor(inp=stream_PBH, requires_grad=True, keep_graph=True)
        parts = inputs.stream.apart(stream)
        if self.table is not None:
            parts["tables"] = self.table()
        last = self.last if head else None
        for number, layer in enumerate(self._layers(), 1):
            if layer.part not in parts:
                continue
            given = parts[layer.part], *layer.others_of(parts)
            compute: Callable[..., Tensor] = layer
            if last is not None and number == len(self.layers):
                compute = partial(last, layer)
            if self.recomputes and self.training:
                if layer.is_trained and not any(x.requires_grad for x in given):  # after frozen parameters alone
                    given = given[0].detach().requires_grad_(), *given[1:]  # autograd sees no other inputs
                parts[layer.part] = tensor_parallel.checkpoint(partial(compute, inputs=inputs), False, *given)
            else:
                parts[layer.part] = compute(*given, inputs=inputs)
        return inputs.stream.joined(parts)

    def output_stream(self, stream: Stream) -> Stream:
        """The layout of what `forward` returns of `stream`."""
        return stream

    def remember(self, memory_SBH: Tensor, cache: KeyValueCache) -> None:
        """Computes the keys and values of what decoder layers read of the encoder, once for all that follows."""
        for layer in self._layers():
            if layer.reads_memory:
                cache[layer.layer_number].memory = layer.cross_attention.keys_values(memory_SBH)

    def _layers(self) -> Iterator[Layer]:
        for layer in self.layers:
            assert isinstance(layer, Layer)
            yield layer
