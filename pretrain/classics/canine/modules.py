"""The modules of CANINE (Clark et al. 2022, arXiv 2103.06874, section 3) around its layers, which read a quarter as
many positions as a text has characters.

Before them: hash functions embed each character, a layer works within blocks of neighbours, and a convolution with
stride makes molecules of the characters. The first molecule is [CLS] itself; the last one is dropped in turn. Behind
them: each molecule is repeated for its characters, a convolution reads these beside the characters' own states, and a
layer attends to all characters from those at which something is predicted.

Shapes: S characters, M molecules, L predictions, B rows, H width, R characters of a molecule.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import tensor_parallel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from torch import Tensor, nn

from pretrain.attention.cache import KeyValueCache
from pretrain.attention.core import AttentionInputs, CoreAttention
from pretrain.attention.device_copies import DeviceCopies
from pretrain.classics.canine.key import KEY, CharacterShape
from pretrain.config.model import Model
from pretrain.models.attentions import SelfAttention
from pretrain.models.blocks import layer_parts
from pretrain.models.embeddings import StackPart
from pretrain.models.hidden_dropout import HiddenDropout
from pretrain.models.inputs import MicroBatch
from pretrain.models.layer_inputs import InputsOfLayers
from pretrain.models.layers import FinalNorm, Layer, LayerInputs
from pretrain.models.masked_head import MaskedHead
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.network import FamilyParts
from pretrain.models.stream import Part, Stream

_PRIMES = (31, 43, 59, 61, 73, 97, 103, 113, 137, 149, 157, 173, 181, 193, 211, 223)
"""multipliers of the hash functions (google-research/language, canine/modeling.py)"""
FIRST_KNOWN = 0xE000
"""the character before the first prediction of a row: [CLS], at position 0"""


class QuerySelfAttention(SelfAttention):
    """Self-attention from some positions to all: queries are made of the layer's input, keys and values of what it gets
    as its bias."""

    def forward(
        self, hidden_states: Tensor, attention_mask: AttentionInputs, *others: Any,
        attention_bias: Tensor | None = None, **named: Any,
    ) -> tuple[Tensor, Any]:  # fmt: skip
        """megatron-core's."""
        return super().forward(hidden_states, attention_mask, *others, **(named | {"key_value_states": attention_bias}))

    def get_query_key_value_tensors(
        self, hidden_states: Tensor, key_value_states: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values; megatron-core calls this."""
        query, key, value = super().get_query_key_value_tensors(hidden_states, **kwargs)
        if key_value_states is not None:
            _, key, value = super().get_query_key_value_tensors(key_value_states, **kwargs)
        return query, key, value


class BlockAttention(CoreAttention):
    """Attention within blocks of characters. Padding attends to the text of its block, and in a block of padding alone
    to all of it, as in the authors' code, since convolutions read it."""

    def __init__(self, *, model: Model, **kwargs: Any) -> None:
        super().__init__(model=model, **kwargs)
        self.block = _shape(model).block

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs, table: Tensor | None, learns_bias: bool
    ) -> Tensor:  # fmt: skip
        length, beyond = q.shape[2], -q.shape[2] % self.block
        q, k, v = (F.pad(x, (0, 0, 0, beyond)).unflatten(2, (-1, self.block)) for x in (q, k, v))
        added_BK = torch.zeros(1, length, dtype=q.dtype, device=q.device)
        if inputs.key_mask_BK is not None:  # the lowest number absorbs a score, so that padding alone weighs alike
            added_BK = added_BK.masked_fill(~inputs.key_mask_BK, torch.finfo(q.dtype).min)
        added_BCK = F.pad(added_BK, (0, beyond), value=-torch.inf).unflatten(1, (-1, self.block))
        scores = (q * self.scale) @ k.transpose(-1, -2)
        weights = (scores + added_BCK[:, None, :, None]).softmax(dim=-1, dtype=torch.float32).to(q.dtype)
        if self.dropout.active:
            weights = self.dropout(weights.flatten(2, 3)).unflatten(2, (-1, self.block))
        out: Tensor = (weights @ v).flatten(2, 3)[:, :, :length]
        return out


class CharacterLayer(Layer):
    """A layer of an encoder that `others` may hand the states which keys and values are made of."""

    def _bias_inputs(self, given: list[Tensor]) -> Tensor | None:
        return given[0] if given else None


class OneLayer(nn.Module):
    """A layer outside the stacks, recomputed as these are."""

    def __init__(
        self,
        model: Model,
        megatron: MegatronConfig,
        chunk: int | None,
        *,
        name: str,
        core: type[CoreAttention] = CoreAttention,
        causal: bool = False,
    ) -> None:
        """`name`: its name in the whole model. `causal`: positions attend to those before them."""
        super().__init__()
        parts: Any = layer_parts(model, megatron, "encoder", 0)
        parts.self_attention.module = QuerySelfAttention
        of_attention = parts.self_attention.submodules
        settings = of_attention.core_attention.keywords | ({"kind": "decoder"} if causal else {})
        of_attention.core_attention = partial(core, **settings)
        self.inner: Any = build_module(
            ModuleSpec(CharacterLayer, {"model": model, "final": FinalNorm}, parts),
            config=megatron,
            layer_number=1,
            pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
            vp_stage=chunk,
        )
        self.inner.global_name = name
        self.recomputes = megatron.recompute_granularity == "full"

    def forward(self, x_LBH: Tensor, reads: AttentionInputs, content_SBH: Tensor | None = None) -> Tensor:
        """`content_SBH`: what keys and values are made of; None: the layer's input."""
        given = (x_LBH,) if content_SBH is None else (x_LBH, content_SBH)
        compute = partial(self.inner, inputs=LayerInputs(Stream({"encoder": len(x_LBH)}), {"encoder": reads}))
        if self.recomputes and self.training:
            if not any(x.requires_grad for x in given):  # after frozen parameters alone
                given = x_LBH.detach().requires_grad_(), *given[1:]
            out: Tensor = tensor_parallel.checkpoint(compute, False, *given)
            return out
        found: Tensor = compute(*given)
        return found


class Downsampling(nn.Module):
    """A convolution with stride: [S, B, H] -> [M, B, H]. Its matrix is the same on every tensor rank."""

    def __init__(self, model: Model, megatron: MegatronConfig) -> None:
        super().__init__()
        self.rate = _shape(model).rate
        self.kernel = megatron.kernels.linear(self.rate * model.hidden, model.hidden)
        self.activation = megatron.kernels.activation[model.activation]
        self.norm = megatron.make_norm()

    def forward(self, x_SBH: Tensor) -> Tensor:
        windows_MBW = x_SBH.unflatten(0, (-1, self.rate)).transpose(1, 2).flatten(2)
        molecules_MBH = self.activation(self.kernel(windows_MBW))
        out: Tensor = self.norm(torch.cat((x_SBH[:1], molecules_MBH[:-1])))
        return out


class Upsampling(nn.Module):
    """A convolution over characters beside their molecules: [S, B, H]."""

    def __init__(self, model: Model, megatron: MegatronConfig) -> None:
        super().__init__()
        self.rate, self.width = _shape(model).rate, _shape(model).kernel
        self.kernel = megatron.kernels.linear(self.width * 2 * model.hidden, model.hidden)
        self.activation = megatron.kernels.activation[model.activation]
        self.norm, self.dropout = megatron.make_norm(), HiddenDropout(megatron)

    def forward(self, characters_SBH: Tensor, molecules_MBH: Tensor) -> Tensor:
        # The first molecule is [CLS]; the last of them stands for the dropped one, too.
        of_characters = torch.cat((molecules_MBH[1:], molecules_MBH[-1:]))
        both = torch.cat((characters_SBH, of_characters.repeat_interleave(self.rate, dim=0)), dim=-1)
        before = (self.width - 1) // 2
        padded = F.pad(both, (0, 0, 0, 0, before, self.width - 1 - before))
        windows = torch.cat([padded[at : at + len(both)] for at in range(self.width)], dim=-1)
        out: Tensor = self.dropout(self.norm(self.activation(self.kernel(windows))))
        return out


class CharacterEmbedding(nn.Module):
    """From code points to the stream: `encoder` adds positions and segments to the hashes, with the norm and dropout
    that follow."""

    def __init__(self, model: Model, megatron: MegatronConfig, part: StackPart) -> None:
        super().__init__()
        shape = _shape(model)
        self.buckets = shape.buckets
        self.primes = DeviceCopies(_PRIMES[: shape.hashes])
        self.first_rows = DeviceCopies([shape.buckets * number for number in range(shape.hashes)])
        self.word_embeddings = megatron.kernels.table(shape.hashes * shape.buckets, model.hidden // shape.hashes)
        self.encoder: Any = part(model, megatron, shape.buckets)
        chunk = None if megatron.virtual_pipeline_model_parallel_size is None else 0
        self.layer = OneLayer(model, megatron, chunk, name="embedding.layer", core=BlockAttention)
        self.down = Downsampling(model, megatron)

    def forward(self, batch: MicroBatch, stream: Stream, source_BSH: Tensor | None = None) -> Tensor:
        """See `embeddings.Embedding`."""
        embedded_SBH = self.encoder(self._hashed(batch.tokens_BS), batch.positions_BS, batch.segments_BS)
        reads = AttentionInputs(positions_BS=batch.positions_BS, key_mask_BK=batch.attention_mask_BS)
        x_SBH = self.layer(embedded_SBH, reads)
        parts: dict[Part, Tensor] = {"encoder": self.down(x_SBH), "row": x_SBH}
        if "known" in stream:
            parts["known"] = self._known(batch)
        return stream.joined(parts)

    def _hashed(self, ids_BS: Tensor) -> Tensor:
        """[B, S, H]: a part of the width from each hash function."""
        device = ids_BS.device
        buckets_BSN = (ids_BS[..., None] + 1) * self.primes.on(device) % self.buckets
        hashed: Tensor = self.word_embeddings(buckets_BSN + self.first_rows.on(device))
        return hashed.flatten(2)

    def _known(self, batch: MicroBatch) -> Tensor:
        """[L, B, H]: what each prediction reads, the one before it, embedded without dropout. A label is a code point
        modulo the number of buckets, which hash functions do not tell from it."""
        places_BL = batch.label_positions_BL
        assert places_BL is not None, "rows say where they predict"
        ids_BL = F.pad(batch.labels_BL[:, :-1], (1, 0), value=FIRST_KNOWN % self.buckets)
        before_BL, of_parts = F.pad(places_BL[:, :-1], (1, 0)), self.encoder
        x_BLH = self._hashed(ids_BL) + of_parts.position_embeddings(before_BL)
        if of_parts.segment_embeddings is not None:
            x_BLH = x_BLH + of_parts.segment_embeddings(torch.zeros_like(before_BL))
        out: Tensor = of_parts.norm(x_BLH).transpose(0, 1)
        return out


class KnownCharacters(nn.Module):
    """Predictions one after the other (CANINE-C, section 3.2): a dense layer joins the state of each to the embedding
    of the one before it, and a layer attends to those before."""

    def __init__(self, model: Model, megatron: MegatronConfig, chunk: int | None) -> None:
        super().__init__()
        self.dense = megatron.kernels.linear(2 * model.hidden, model.hidden)
        self.activation = megatron.kernels.activation[model.activation]
        self.norm = megatron.make_norm()
        self.layer = OneLayer(model, megatron, chunk, name="characters.known.layer", causal=True)

    def forward(self, x_LBH: Tensor, known_LBH: Tensor, positions_BL: Tensor) -> Tensor:
        joined = self.norm(self.activation(self.dense(torch.cat((x_LBH, known_LBH), dim=-1))))
        out: Tensor = self.layer(joined, AttentionInputs(positions_BS=positions_BL))
        return out


class CharacterOutput(nn.Module):
    """From the layers' molecules to what the head reads: states of characters at the places of predictions, or of all;
    for a head that answers for the row, the first molecule in the place of each; for one that does both, the first
    molecule before the states of predictions."""

    global_name = "characters"

    def __init__(self, model: Model, megatron: MegatronConfig, chunk: int | None) -> None:
        super().__init__()
        self.up: Upsampling | None = None
        self.answers = model.binary_head
        self.known = KnownCharacters(model, megatron, chunk) if model.predicts_in_order else None
        if model.upsamples:
            self.up = Upsampling(model, megatron)
            self.layer = OneLayer(model, megatron, chunk, name="characters.layer")

    def forward(self, parts: Mapping[Part, Tensor], batch: MicroBatch) -> Tensor:
        """[L, B, H]"""
        molecules_MBH = parts["encoder"]
        if self.up is None:
            return molecules_MBH[:1].expand(batch.labels_BL.shape[1], -1, -1)
        x_SBH = self.up(parts["row"], molecules_MBH)
        places_BL = batch.label_positions_BL
        reads = AttentionInputs(positions_BS=batch.positions_BS, key_mask_BK=batch.attention_mask_BS)
        if places_BL is None:
            everywhere: Tensor = self.layer(x_SBH, reads)
            return everywhere
        picked_LBH = x_SBH.gather(0, places_BL.T[..., None].expand(-1, -1, x_SBH.shape[-1]))
        out: Tensor = self.layer(picked_LBH, reads, x_SBH)
        if self.known is not None:
            out = self.known(out, parts["known"], places_BL)
        return torch.cat((molecules_MBH[:1], out)) if self.answers else out


def molecule_inputs(model: Model) -> InputsOfLayers:
    """Function that makes the inputs of the layers between, of which each position is one of several characters. A
    molecule counts as padding where the characters of its own number are, as in the authors' code, although it is made
    of those before them."""
    rate = model.row_rate

    def inputs(batch: MicroBatch, stream: Stream, cache: KeyValueCache | None) -> LayerInputs:
        shown_BS = batch.attention_mask_BS
        shown_BM = None if shown_BS is None else shown_BS.unflatten(1, (-1, rate)).any(dim=2)
        reads = AttentionInputs(positions_BS=batch.positions_BS[:, ::rate], key_mask_BK=shown_BM)
        return LayerInputs(stream, {"encoder": reads})

    return inputs


def _shape(model: Model) -> CharacterShape:
    shape = KEY.of(model)
    assert shape is not None, "of the family"
    return shape


PARTS = FamilyParts(
    head=MaskedHead, reads=CharacterEmbedding, before_head=CharacterOutput, layer_inputs=molecule_inputs
)
