"""Our T5 as Hugging Face's: v1.0 (ReLU, tied head) and v1.1 (gated GELU, its own head)."""

from collections.abc import Iterator
from typing import Any

from transformers import T5Config, T5ForConditionalGeneration, T5ForQuestionAnswering, T5ForSequenceClassification

from data_pipeline.tokenizers.specials import Specials
from pretrain.config.model import Model
from pretrain.interop.hf.family import HfFamily, HfHead
from pretrain.interop.hf.links import Link, by_head, gated, norm, rows, same
from pretrain.model_spec.hf_fits import OF_T5, check_t5


def hf_config(model: Model, specials: Specials) -> T5Config:
    """Every field stated. Raises ConfigError for a model that T5 cannot express."""
    check_t5(model)
    encoder_layers, decoder_layers = model.stacks
    fields = dict[str, Any](  # not all of which its signature has
        vocab_size=model.vocab_size,
        d_model=model.hidden,
        d_kv=model.dim_per_head,
        d_ff=model.ffn_dim,
        num_layers=encoder_layers,
        num_decoder_layers=decoder_layers,
        num_heads=model.heads,
        relative_attention_num_buckets=model.relative_num_buckets,
        relative_attention_max_distance=model.relative_max_distance,
        dropout_rate=model.dropout,
        layer_norm_epsilon=model.norm_eps,
        feed_forward_proj=OF_T5[model.activation],
        tie_word_embeddings=model.tie_word_embeddings,
        decoder_start_token_id=specials.start,
        pad_token_id=specials.pad,
        eos_token_id=specials.end,
        n_positions=model.sequence_length,
        architectures=[T5ForConditionalGeneration.__name__],
    )
    return T5Config(**fields)


def model_of(config: T5Config) -> dict[str, Any]:
    """Our `model` section. T5 has no maximum length: the default is the 512 positions that it was trained on."""
    names = {hf: name for name, hf in OF_T5.items()}
    return {
        "family": "t5",
        "layers": config.num_decoder_layers,
        "encoder_layers": config.num_layers,
        "hidden": config.d_model,
        "head_dim": config.d_kv,
        "ffn": config.d_ff,
        "heads": config.num_heads,
        "sequence_length": getattr(config, "n_positions", 512),
        "target_length": getattr(config, "n_positions", 512),
        "vocabulary": config.vocab_size,
        "norm_type": "rms",
        "norm_eps": config.layer_norm_epsilon,
        "bias": False,
        "activation": names[config.feed_forward_proj],
        "positions": {
            "name": "relative",
            "num_buckets": config.relative_attention_num_buckets,
            "max_distance": config.relative_attention_max_distance,
        },
        "tie_word_embeddings": config.scale_decoder_outputs,  # transformers 5: the file's tie_word_embeddings
        "dropout": config.dropout_rate,
        "attention_dropout": config.dropout_rate,
        "ffn_dropout": config.dropout_rate,
        "init": "t5",
    }


def links(model: Model) -> Iterator[Link]:
    yield rows("embedding.word_embeddings.weight", "shared.weight", model)
    for stack, layers in zip(("encoder", "decoder"), model.stacks, strict=True):
        first = f"{stack}.block.0.layer.0.SelfAttention"
        yield same(f"embedding.relative.{stack}", f"{first}.relative_attention_bias.weight")
        for layer in range(layers):
            yield from _layer(f"{stack}.layers.{layer}", f"{stack}.block.{layer}.layer", model, stack == "decoder")
        yield from norm(f"{stack}.layers.{layers - 1}.final.norm", f"{stack}.final_layer_norm", model)
    if not model.tie_word_embeddings:
        yield rows("output_layer.weight", "lm_head.weight", model)


def _layer(mcore: str, hf: str, model: Model, decodes: bool) -> Iterator[Link]:
    yield from norm(f"{mcore}.input_layernorm", f"{hf}.0.layer_norm", model)
    names = [f"{hf}.0.SelfAttention.{name}" for name in "qkv"]
    yield from by_head(f"{mcore}.self_attention.linear_qkv", names, model)
    yield same(f"{mcore}.self_attention.linear_proj.weight", f"{hf}.0.SelfAttention.o.weight")
    if decodes:
        cross = f"{hf}.1.EncDecAttention"
        yield from norm(f"{mcore}.pre_cross_attn_layernorm", f"{hf}.1.layer_norm", model)
        yield same(f"{mcore}.cross_attention.linear_q.weight", f"{cross}.q.weight")
        yield from by_head(f"{mcore}.cross_attention.linear_kv", [f"{cross}.k", f"{cross}.v"], model)
        yield same(f"{mcore}.cross_attention.linear_proj.weight", f"{cross}.o.weight")
    last = f"{hf}.{2 if decodes else 1}"
    yield from norm(f"{mcore}.pre_mlp_layernorm", f"{last}.layer_norm", model)
    dense = f"{last}.DenseReluDense"
    if model.gated:
        yield gated(f"{mcore}.mlp.linear_fc1.weight", f"{dense}.wi_0.weight", f"{dense}.wi_1.weight")
    else:
        yield same(f"{mcore}.mlp.linear_fc1.weight", f"{dense}.wi.weight")
    yield same(f"{mcore}.mlp.linear_fc2.weight", f"{dense}.wo.weight")


T5 = HfFamily(
    model_class=T5ForConditionalGeneration,
    model_type="t5",
    objective="span_corruption",
    head_prefixes=("lm_head.",),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
    heads={
        "sequence": HfHead(
            model_class=T5ForSequenceClassification,
            classifier="classification_head.out_proj",
            pooler="classification_head.dense",
            prefix=("", "transformer."),
        ),
        "spans": HfHead(model_class=T5ForQuestionAnswering, classifier="qa_outputs"),
    },
)
