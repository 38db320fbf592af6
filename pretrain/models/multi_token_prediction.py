"""Modules that predict further tokens in training (DeepSeek-AI 2024, arXiv 2412.19437, section 2.2). Each reads what
the one before it said of a position, or the last layer's output after its norm, and the embedding of one more token;
its own output, normed, is read by the shared head and by the next module.

They lie on the last stage, with the head. The embeddings are made on the first one, of the tables that are there, and
travel with the activations: so no stage needs a copy of the tables, and their gradient comes back as the others'.

Shapes: S positions (this rank's), B rows, H width, D depths.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from megatron.core import tensor_parallel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor, nn

from pretrain.config.model import Model
from pretrain.model_spec.mtp import mtp_layer_name
from pretrain.models.blocks import layer_parts
from pretrain.models.inputs import MicroBatch
from pretrain.models.layers import Final, Layer, LayerInputs
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.megatron_versions import MtpNames
from pretrain.models.mtp_tokens import MtpTokens
from pretrain.models.network_slots import Named, NetworkModules
from pretrain.models.stream import Stream


class MtpModules(NetworkModules):
    """See `NetworkModules`."""

    def further(self, model: Model, megatron: MegatronConfig, final: Final, chunk: int | None) -> Named | None:
        """See `NetworkModules`. megatron-core looks for the name, and for layers in it."""
        return None if model.mtp is None else ("mtp", MultiTokenPrediction(model, megatron, final, chunk))


class MultiTokenPrediction(nn.Module):
    """The modules of a model, in their order."""

    global_name = "mtp"

    def __init__(self, model: Model, megatron: MegatronConfig, final: Final, chunk: int | None) -> None:
        super().__init__()
        assert model.mtp is not None
        depths = range(model.mtp.num_layers)
        self.layers = nn.ModuleList(MtpLayer(model, megatron, final, chunk, depth) for depth in depths)

    def forward(
        self, hidden_SBH: Tensor, stream_PBH: Tensor, batch: MicroBatch, inputs: LayerInputs
    ) -> tuple[Tensor, ...]:
        """Hidden states that the head reads at each depth. The stream has the embeddings of the tokens of all
        depths."""
        assert batch.mtp is not None, "rows say which tokens follow"
        tokens, embeddings_PBH = batch.mtp, inputs.stream.part(stream_PBH, "mtp")
        embedded, states = embeddings_PBH.chunk(len(self.layers)), list[Tensor]()
        for depth, (layer, embeddings_SBH) in enumerate(zip(self.layers, embedded, strict=True)):
            hidden_SBH = layer(hidden_SBH, embeddings_SBH, _inputs_at(depth, tokens, inputs, len(hidden_SBH)))
            states.append(hidden_SBH)
        return tuple(states)


class MtpLayer(MtpNames, nn.Module):
    """One of them: a projection of both inputs, and a layer like the last of the stack, with a norm behind it."""

    def __init__(self, model: Model, megatron: MegatronConfig, final: Final, chunk: int | None, depth: int) -> None:
        super().__init__()
        self.enorm, self.hnorm = megatron.make_norm(), megatron.make_norm()
        self.eh_proj = megatron.kernels.linear(2 * model.hidden, model.hidden, bias=False)
        # The same on every tensor rank, which under sequence parallelism finds the gradient of its own positions.
        self.eh_proj.weight.sequence_parallel = megatron.sequence_parallel  # type: ignore[union-attr]
        number = model.layers + depth
        self.transformer_layer: Any = build_module(
            ModuleSpec(Layer, {"model": model, "final": final}, layer_parts(model, megatron, "decoder", number)),
            config=megatron,
            layer_number=number + 1 - get_transformer_layer_offset(megatron, chunk),  # which megatron-core adds
            pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
            vp_stage=chunk,
        )
        self.transformer_layer.global_name = mtp_layer_name(depth)
        self.final_layernorm = megatron.make_norm()
        self.recomputes = megatron.recompute_granularity == "full"

    def forward(self, hidden_SBH: Tensor, embeddings_SBH: Tensor, inputs: LayerInputs) -> Tensor:
        """[S, B, H]"""
        compute = partial(self._compute, inputs=inputs)
        # Gradients of all uses here are summed first, then with the head's: in the order of a layer that is recomputed.
        hidden_SBH = hidden_SBH.view_as(hidden_SBH)
        if self.recomputes and self.training:
            out: Tensor = tensor_parallel.checkpoint(compute, False, hidden_SBH, embeddings_SBH)
            return out
        return compute(hidden_SBH, embeddings_SBH)

    def _compute(self, hidden_SBH: Tensor, embeddings_SBH: Tensor, *, inputs: LayerInputs) -> Tensor:
        both_SBI = torch.cat((self.enorm(embeddings_SBH), self.hnorm(hidden_SBH)), dim=-1)
        x_SBH = self.transformer_layer(self.eh_proj(both_SBI), inputs=inputs)
        out: Tensor = self.final_layernorm(x_SBH)
        return out


def _inputs_at(depth: int, tokens: MtpTokens, inputs: LayerInputs, positions: int) -> LayerInputs:
    """Inputs of the layer of a depth: attention as in the stack, and no routes of positions without a token."""
    routes = inputs.routes
    if routes is not None:
        routes = replace(routes, real_BS=routes.real_BS & tokens.given_BDS[:, depth])
    return LayerInputs(Stream({"decoder": positions}), inputs.own, routes=routes)
