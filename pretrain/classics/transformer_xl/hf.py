"""Our XLNet, and our Transformer-XL, as Hugging Face's XLNet: its attention is the same, and its positions see all
others (`attn_type: bi`) or those before them (`uni`)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import (
    XLNetConfig,
    XLNetForMultipleChoice,
    XLNetForQuestionAnswering,
    XLNetForQuestionAnsweringSimple,
    XLNetForSequenceClassification,
    XLNetForTokenClassification,
    XLNetLMHeadModel,
)

from data_pipeline.tokenizers.specials import Specials
from pretrain.classics.transformer_xl.hf_class import SEGMENTS, check_model
from pretrain.config.model import Model
from pretrain.config.positions import TransformerXlPositions
from pretrain.errors import ConfigError
from pretrain.interop.hf.family import HfFamily, HfHead
from pretrain.interop.hf.fits import our_activation
from pretrain.interop.hf.links import Link, linear, norm, one, rows, same
from pretrain.model_spec.hf_fits import ACTIVATIONS

_UNKNOWN_LENGTH = 512  # of imported models, whose config has none


def hf_config(model: Model, specials: Specials) -> XLNetConfig:
    """Every field stated, but for dropout inside of layers: transformers has one rate for all. Raises ConfigError for a
    model that XLNet cannot express."""
    check_model(model)
    assert isinstance(model.positions, TransformerXlPositions)
    return XLNetConfig(
        vocab_size=model.vocab_size, d_model=model.hidden, n_layer=model.layers, n_head=model.heads,
        d_inner=model.ffn_dim, ff_activation=ACTIVATIONS[model.activation],
        attn_type="uni" if model.is_causal else "bi", initializer_range=model.init_std,
        layer_norm_eps=model.norm_eps, dropout=model.dropout, mem_len=None, reuse_len=None, use_mems_eval=False,
        use_mems_train=False, bi_data=False, clamp_len=model.positions.clamp or -1, same_length=False,
        summary_last_dropout=model.dropout,
        bos_token_id=specials.cls if specials.cls >= 0 else specials.end,
        eos_token_id=specials.sep if specials.sep >= 0 else specials.end,
        pad_token_id=specials.pad if specials.pad >= 0 else None, tie_word_embeddings=True,
        architectures=[XLNetLMHeadModel.__name__],
    )  # fmt: skip


def refuse(tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for what transformers computes and this project does not."""
    for key in ("bi_data", "same_length"):
        if tree.get(key):
            raise ConfigError(f"{key} is not known here: positions count forward, and all keys of a row are seen")
    if tree.get("attn_type") == "uni" and tree.get("architectures") not in (None, [], [XLNetLMHeadModel.__name__]):
        raise ConfigError("attn_type uni is known here of models that predict tokens")


def model_of(config: XLNetConfig) -> dict[str, Any]:
    """Our `model` section."""
    causal = config.attn_type == "uni"
    return {
        "family": "transformer_xl" if causal else "xlnet",
        "layers": config.n_layer,
        "hidden": config.d_model,
        "heads": config.n_head,
        "ffn": config.d_inner,
        "sequence_length": _UNKNOWN_LENGTH,
        "vocabulary": config.vocab_size,
        "norm": "post",
        "norm_eps": config.layer_norm_eps,
        "activation": our_activation({"gelu_new": "gelu_new"}.get(config.ff_activation, config.ff_activation)),
        "positions": {"name": "transformer_xl", "clamp": config.clamp_len if config.clamp_len > 0 else None},
        "segments": 0 if causal else SEGMENTS,
        "qkv_bias": False,
        "projection_bias": False,
        "dropout": config.dropout,
        "attention_dropout": config.dropout,
        "ffn_dropout": config.dropout,
        "init": {"name": "normal", "scale_residual": False},
    }


def links(model: Model) -> Iterator[Link]:
    words = rows("embedding.word_embeddings.weight", "transformer.word_embedding.weight", model)
    if model.capabilities.query_stream:
        yield words
        yield one("embedding.query", ("transformer.mask_emb",), lambda x: [x[None]], lambda x: x[0])
    else:
        yield replace(
            words,
            hf_names=(*words.hf_names, "transformer.mask_emb"),
            out=lambda x: [*words.out(x), x.new_zeros(1, 1, x.shape[1])],
            back=lambda x, _: words.back(x),
        )
    heads, width = model.heads, model.dim_per_head
    for layer in range(model.layers):
        ours, theirs = f"{'decoder' if model.is_causal else 'encoder'}.layers.{layer}", f"transformer.layer.{layer}"
        attention = f"{theirs}.rel_attn"
        yield _queries_keys_values(f"{ours}.self_attention.linear_qkv.weight", attention, model)
        yield one(
            f"{ours}.self_attention.linear_proj.weight",
            (f"{attention}.o",),
            lambda x: [x.unflatten(1, (heads, width))],
            lambda x: x.flatten(1),
        )
        terms = f"{ours}.self_attention.core_attention.distance_scores"
        yield one(f"{terms}.projection", (f"{attention}.r",), lambda x: [x.movedim(2, 0)], lambda x: x.movedim(0, 2))
        vectors = f"{attention}.seg_embed"
        yield same(f"{terms}.distance_bias", f"{attention}.r_r_bias")
        if model.compares_segments:
            yield same(f"{terms}.key_bias", f"{attention}.r_w_bias")
            yield same(f"{terms}.segment_bias", f"{attention}.r_s_bias")
            yield one(f"{terms}.segments", (vectors,), lambda x: [x.movedim(1, 0)], lambda x: x.movedim(0, 1))
        else:
            names = tuple(f"{attention}.{name}" for name in ("r_w_bias", "r_s_bias", "seg_embed"))
            yield one(f"{terms}.key_bias", names, _without_segments, lambda x, *_: x)
        yield from norm(f"{ours}.self_attn_bda.norm", f"{attention}.layer_norm", model)
        yield from linear(f"{ours}.mlp.linear_fc1", f"{theirs}.ff.layer_1", model)
        yield from linear(f"{ours}.mlp.linear_fc2", f"{theirs}.ff.layer_2", model)
        yield from norm(f"{ours}.mlp_bda.norm", f"{theirs}.ff.layer_norm", model)
    yield rows("output_layer.bias", "lm_loss.bias", model)


def _without_segments(key_bias: Tensor) -> list[Tensor]:
    """The bias, and zeros for what is of segments, which a Transformer-XL is not given."""
    return [key_bias, torch.zeros_like(key_bias), key_bias.new_zeros(SEGMENTS, *key_bias.shape)]


def _left_out(model: Model, values: Mapping[str, Tensor]) -> list[str]:
    """See `HfFamily`: of a Transformer-XL what is of segments and of queries without a token, which it is not given;
    exports have zeros there."""
    unused = (name for name in values if name.endswith(("seg_embed", "r_s_bias", "mask_emb")))
    return [name for name in unused if model.is_causal and values[name].any()]


def _queries_keys_values(ours: str, theirs: str, model: Model) -> Link:
    """Query, key and value of each head lie together here; there are [inputs, heads, width] of each."""
    heads, width = model.heads, model.dim_per_head

    def out(fused: Tensor) -> list[Tensor]:
        return [x.movedim(2, 0) for x in fused.view(heads, 3, width, -1).unbind(1)]

    def back(*values: Tensor) -> Tensor:
        return torch.stack([x.movedim(0, 2) for x in values], dim=1).flatten(0, 2)

    return one(ours, tuple(f"{theirs}.{name}" for name in "qkv"), out, back)


def _summary(model_class: Any) -> HfHead:
    """A class whose last position, after a dense layer and tanh, answers for its row."""
    fields = {"summary_type": "last", "summary_use_proj": True, "summary_activation": "tanh"}
    return HfHead(model_class=model_class, classifier="logits_proj", pooler="sequence_summary.summary", fields=fields)


XLNET = HfFamily(
    model_class=XLNetLMHeadModel,
    model_type="xlnet",
    objective="permuted",
    objectives={"transformer_xl": "causal"},
    head_prefixes=("lm_loss.",),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
    refuse=refuse,
    left_out=_left_out,
    heads={
        "sequence": _summary(XLNetForSequenceClassification),
        "tokens": HfHead(model_class=XLNetForTokenClassification, classifier="classifier"),
        "spans": HfHead(model_class=XLNetForQuestionAnsweringSimple, classifier="qa_outputs"),
        "span": HfHead(
            model_class=XLNetForQuestionAnswering, classifier="start_logits", pooler="end_logits", unused="answer_class"
        ),
        "choice": _summary(XLNetForMultipleChoice),
    },
)
TRANSFORMER_XL = replace(XLNET, heads={})
