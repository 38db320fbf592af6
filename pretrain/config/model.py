"""`model`: the shape of the network."""

from operator import attrgetter
from typing import Any

from pydantic import model_validator

from pretrain.config.families import CAPABILITIES
from pretrain.config.model_values import ModelValues
from pretrain.config.parts.registry import PARTS
from pretrain.config.positions import (
    POSITIONS,
    NtkScaling,
    RotaryPositions,
    YarnScaling,
)


class Model(ModelValues):
    """A model whose keys suit each other."""

    @model_validator(mode="before")
    @classmethod
    def _parts_of_the_family(cls, tree: Any) -> Any:
        family = tree.get("family") if isinstance(tree, dict) else None
        if not isinstance(family, str) or family not in CAPABILITIES:
            return tree
        for key in CAPABILITIES[family].parts:
            if key not in PARTS:
                raise ValueError(
                    f"model.family={family} is declared with the part {key!r}, which no installed package declares in "
                    "pretrain.part_keys: repair or uninstall its package"
                )
        completed = {key: part.completed(tree.get(key), CAPABILITIES[family]) for key, part in PARTS.items()}
        return {**tree, **{key: value for key, value in completed.items() if value is not None}}

    @model_validator(mode="after")
    def _parts_suit_it(self) -> "Model":
        for part in PARTS.values():
            part.check(self)
        return self

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> "Model":
        if self.head_dim is None and not self.splits_heads and self.hidden % self.heads:
            raise ValueError(
                f"model.hidden={self.hidden} is not a multiple of model.heads={self.heads}: set model.head_dim"
            )
        if self.kv_heads is not None:
            if self.heads % self.kv_heads:
                raise ValueError(f"model.kv_heads={self.kv_heads} does not divide model.heads={self.heads}")
            if self.is_encoder_decoder:
                raise ValueError("model.kv_heads is for models of one stack: leave it out for an encoder-decoder")
        return self

    @model_validator(mode="after")
    def _family_has_these_parts(self) -> "Model":
        can = self.capabilities
        if not (can.encoder and can.decoder):
            for key in ("encoder_layers",) if self.downsampling is not None else ("encoder_layers", "target_length"):
                if getattr(self, key) is not None:
                    raise ValueError(f"model.{key} is for encoder-decoders: leave it out for the {self.family} family")
        if self.encoder_layers == 0 and not can.decoder_alone:
            having = " or ".join(name for name, other in CAPABILITIES.items() if other.decoder_alone)
            raise ValueError(
                f"model.encoder_layers=0, a decoder alone, is for the {having} family: give it layers, or use gpt"
            )
        if (self.segments or self.binary_head) and not can.fewest_segments:
            raise ValueError(f"model.segments and model.binary_head are BERT's: leave them out for {self.family}")
        has_two_widths = (can.masked_head and "embedding_size" not in can.only) or self.recurrence is not None
        if self.embedding_size is not None and not has_two_widths:
            having = " or ".join(
                name for name, other in CAPABILITIES.items() if other.masked_head and "embedding_size" not in other.only
            )
            raise ValueError(
                f"model.embedding_size is for the {having} family, whose head has a transform: leave it out for "
                f"{self.family}"
            )
        if 0 < self.segments < can.fewest_segments:
            raise ValueError(f"model.segments={self.segments} adds the same to every token: leave it out")
        for key, value in can.only.items():
            if (configured := attrgetter(key)(self)) != value:
                raise ValueError(f"model.{key}={configured} is not in the {self.family} family: leave it out")
        if self.cutoffs and not can.adaptive_softmax:
            having = " or ".join(name for name, other in CAPABILITIES.items() if other.adaptive_softmax)
            raise ValueError(f"model.cutoffs is for the {having} family: leave it out for {self.family}")
        if self.memory_length and not can.memory:
            having = " or ".join(name for name, other in CAPABILITIES.items() if other.memory)
            raise ValueError(
                f"model.memory_length={self.memory_length} is for the {having} family, whose positions are distances: "
                f"leave it out for {self.family}"
            )
        if self.memory_length and self.norm != "post":
            raise ValueError(
                f"model.memory_length={self.memory_length} keeps what layers read, which norms would change with "
                f"model.norm={self.norm}: use post"
            )
        if self.positions.name not in can.positions and self.family not in self.positions.families:
            added = (name for name, kind in POSITIONS.items() if self.family in kind.families)
            suitable = " or ".join((*can.positions, *added))
            raise ValueError(
                f"model.positions={self.positions.name} is not in the {self.family} family: use {suitable}"
            )
        return self

    @model_validator(mode="after")
    def _cutoffs_are_words(self) -> "Model":
        if self.cutoffs and sorted(set(self.cutoffs)) != self.cutoffs:
            raise ValueError(f"model.cutoffs={self.cutoffs} must grow: each is the first id of a cluster")
        if self.cutoffs and self.vocabulary is not None and self.cutoffs[-1] >= self.vocabulary:
            raise ValueError(
                f"model.cutoffs={self.cutoffs} leaves no word for the last cluster: its first id must be less than "
                f"model.vocabulary={self.vocabulary}"
            )
        return self

    @model_validator(mode="after")
    def _fields_do_something(self) -> "Model":
        if self.qk_norm_span != "head" and not (self.qk_norm and self.norm_type == "rms"):
            raise ValueError(
                "model.qk_norm_span=all_heads is of RMS norms of queries and keys: set model.qk_norm=true and "
                "model.norm_type=rms, or leave it out"
            )
        if self.encoder_layers == 0 and self.target_length is not None:
            raise ValueError(
                f"model.target_length={self.target_length} does nothing with model.encoder_layers=0: leave it out"
            )
        if self.tie_encoder_decoder and (self.stacks[0] != self.stacks[1] or self.shared_layers):
            raise ValueError(
                "model.tie_encoder_decoder pairs the layers of an encoder and a decoder: give both as many, and "
                "leave out model.shared_layers"
            )
        if isinstance(self.positions, RotaryPositions) and self.rotary_dim % 2:
            raise ValueError(
                f"model.positions=rotary turns pairs of features: a head of {self.rotary_dim} has an odd one"
            )
        scaling = self.positions.scaling if isinstance(self.positions, RotaryPositions) else None
        if isinstance(scaling, NtkScaling) and self.rotary_dim < 4:
            raise ValueError(
                f"model.positions.scaling=ntk makes the last of several wavelengths longer: a head of "
                f"{self.rotary_dim} has one"
            )
        if (
            isinstance(scaling, YarnScaling)
            and not self.splits_heads
            and (scaling.mscale is not None or scaling.mscale_all_dim is not None)
        ):
            raise ValueError(
                "model.positions.scaling.mscale and mscale_all_dim are for model.latent_attention: leave them out, or "
                "set attention_factor"
            )
        return self

    @model_validator(mode="after")
    def _patterns_suit_it(self) -> "Model":
        self.attention.check(self.heads, self.sequence_length, self.has_encoder, self.has_decoder)
        projection = self.attention.projection
        if projection is not None and (
            self.positions.name not in ("learned", "sinusoidal") or self.kv_heads is not None
        ):
            raise ValueError(
                f"model.attention.pattern: a key of {projection.name} is of all positions: set model.positions to "
                "learned or sinusoidal, and leave out model.kv_heads"
            )
        if self.attention.weighs and (
            self.attention_dropout or self.needs_explicit_scores or self.positions.name in ("relative", "alibi")
        ):
            raise ValueError(
                "model.attention.pattern: first_again counts keys where torch's kernel computes all scores: leave it "
                "out, or model.attention_dropout, model.attention_logit_softcap and positions that change scores"
            )
        return self
