"""Capabilities of each model family: code checks these in place of a family's name. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from data_pipeline.common.plugins import Registry
from pretrain.config.classics import declared
from pretrain.config.section import NameIn


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Capabilities of one family. What depends on a model's size too (whether it has an encoder, say) is a property of
    `Model`."""

    encoder: bool = False
    decoder: bool = False
    decoder_alone: bool = False
    """a model of a family with both may leave its encoder out"""
    masked_head: bool = False
    """the head is a transform and a norm before the logits, which have a bias"""
    head_bias: bool = False
    """the logits have a bias"""
    fewest_segments: int = 0
    """fewest segments of a model with segment embeddings; 0: the family has neither these nor a binary head"""
    prefix: bool = False
    """a decoder alone may be given a prefix that every position sees"""
    packing: bool = False
    """documents may lie side by side in a row"""
    memory: bool = False
    """layers may attend to what they read of the row before (Transformer-XL)"""
    adaptive_softmax: bool = False
    """rare words may compete in clusters of their own (`model.cutoffs`)"""
    query_stream: bool = False
    """some positions of a row may be queries without a token, which no position attends to (XLNet)"""
    pooler: Literal["tanh", "activation"] | None = None
    """activation behind the dense layer that a position goes through before it answers for its row (`task_head`); None:
    there is no such layer. "activation": that of the layers"""
    drops_before_pooler: bool = False
    """the input of that layer drops out too, where one position answers for its row (RoBERTa's classifier)"""
    key_bias: bool = True
    """where queries and values have a bias, keys have one too, and so have keys of distances"""
    self_attention: bool = True
    """layers have self-attention, whose heads tensor ranks share; otherwise something in its place"""
    parts: tuple[str, ...] = ()
    """keys of `model` for parts that only some families may have (`pretrain/config/parts`)"""
    generator: bool = False
    """it may be trained beside a generator that replaces tokens"""
    detector_context: bool = False
    """the head that tells whether a token was replaced reads the normalized sum of its state and the first
    position's"""
    first_names: bool = False
    """parameters go by names given when there was no other family, which checkpoints have"""
    without_hf_class: str | None = None
    """why no class of transformers has its models, in the end of a sentence about that class; None: one has them"""
    hashes_inputs: bool = False
    """inputs are any numbers, which hash functions embed: there is no table with a row for each"""
    planned: bool = True
    """`pretrain plan` knows what its models compute, keep and send; others are counted by `pretrain rehearse` alone"""
    input_format: str | None = None
    """format of labelled inputs (`objective.format`); None: that of the model's shape"""
    positions: tuple[str, ...] = ("learned", "sinusoidal", "relative")
    only: Mapping[str, Any] = field(default_factory=dict)
    """attributes of `model` that have one value in this family"""


WITHOUT_CAPS = {
    "qk_norm": False, "final_logit_softcap": None, "attention_logit_softcap": None, "query_pre_attn_scalar": None,
}  # fmt: skip
BEFORE_LLAMA = WITHOUT_CAPS | {"qkv_bias": None, "projection_bias": True}

POSITIONS_OF_ENCODERS = ("learned", "sinusoidal", "relative", "alibi")

_PLAIN = BEFORE_LLAMA | {
    "norm_type": "layer", "bias": True, "position_offset": 0, "embedding_norm": False, "embedding_scale": False,
    "init.name": "normal",
}  # fmt: skip

_BUILT_IN: dict[str, Capabilities] = {
    "gpt": Capabilities(
        parts=("mup",),
        decoder=True,
        packing=True,
        first_names=True,
        positions=("learned", "rotary", "alibi"),
        only=_PLAIN,
    ),
    "bert": Capabilities(
        parts=("mup",),
        encoder=True,
        masked_head=True,
        head_bias=True,
        fewest_segments=1,
        pooler="tanh",
        positions=POSITIONS_OF_ENCODERS,
        only=BEFORE_LLAMA,
    ),
    "roberta": Capabilities(
        parts=("mup",),
        encoder=True,
        masked_head=True,
        head_bias=True,
        fewest_segments=2,
        input_format="roberta",
        pooler="tanh",
        drops_before_pooler=True,
        positions=POSITIONS_OF_ENCODERS,
        only=BEFORE_LLAMA,
    ),
    "t5": Capabilities(
        parts=("mup",),
        encoder=True,
        decoder=True,
        decoder_alone=True,
        prefix=True,
        pooler="tanh",
        drops_before_pooler=True,
        only=BEFORE_LLAMA,
    ),
    "transformer": Capabilities(
        parts=("mup",),
        encoder=True,
        decoder=True,
        only=BEFORE_LLAMA,
    ),
    "bart": Capabilities(
        parts=("mup",),
        encoder=True,
        decoder=True,
        input_format="bart",
        pooler="tanh",
        drops_before_pooler=True,
        only=BEFORE_LLAMA,
    ),
    "llama": Capabilities(
        decoder=True,
        packing=True,
        parts=("experts", "latent_attention", "mtp", "mup"),
        positions=("rotary", "alibi"),
    ),
}

_LISTED = (
    *("gpt", "bert", "roberta", "t5", "transformer", "bart", "llama", "ctrl", "roformer", "xlm", "electra", "deberta"),
    *("deberta_v2", "monarch_mixer", "transformer_xl", "xlnet", "rnn", "canine", "albert"),
)
_GROUP = "pretrain.families"
CAPABILITIES: Registry[Capabilities] = Registry(_GROUP, _BUILT_IN, Capabilities, declared(_GROUP), _LISTED)
Family = Annotated[str, NameIn(CAPABILITIES)]
