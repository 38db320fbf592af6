"""Classes of Hugging Face's transformers for the families that are no folders of `pretrain/classics`. No torch."""

from functools import partial

from pretrain.config.attention import Banded
from pretrain.config.model import Model
from pretrain.config.patterns.bands import LocalGlobal
from pretrain.config.patterns.blocks import BigBird
from pretrain.model_spec import hf_fits
from pretrain.model_spec.hf_class import HfClass, Kind, kin

_THREE: tuple[Kind, Kind, Kind] = ("sequence", "tokens", "spans")
_RELU = "the dense layer before the classifier of DistilBERT's class ends with ReLU, and that of a BERT with tanh"


def _experts(model: Model, scores: str | None = None) -> bool:
    return model.experts is not None and scores in (None, model.experts.scores)


def _has(model: Model, *patterns: type) -> bool:
    return any(isinstance(pattern, patterns) for pattern in model.attention.kinds)


_llama = partial(HfClass, family="llama")
_ROWS = (
    HfClass(
        model_type="gpt2",
        family="gpt",
        check=hf_fits.check_gpt2,
        heads=kin("GPT2", *_THREE) | {"choice": "GPT2DoubleHeadsModel"},
    ),
    HfClass(
        model_type="big_bird",
        family="bert",
        takes=lambda model: _has(model, BigBird),
        check=hf_fits.check_big_bird,
        heads=kin("BigBird", "tokens", "choice"),
        otherwise={
            "sequence": "its class has the activation of its layers where ours has tanh",
            "spans": "its class has two more layers",
        },
    ),
    HfClass(
        model_type="distilbert",
        family="bert",
        takes=lambda model: not model.segments and not model.binary_head,
        check=hf_fits.check_distilbert,
        heads=kin("DistilBert", "tokens", "spans"),
        otherwise={"sequence": _RELU, "choice": _RELU},
    ),
    HfClass(model_type="bert", family="bert", check=hf_fits.check_bert, heads=kin("Bert", *_THREE, "choice")),
    HfClass(
        model_type="xlm-roberta",
        family="roberta",
        takes=lambda model: False,  # nothing in a model says that its vocabulary is of many languages
        check=hf_fits.check_roberta,
        heads=kin("XLMRoberta", *_THREE, "choice"),
    ),
    HfClass(
        model_type="longformer",
        family="roberta",
        takes=lambda model: _has(model, Banded, LocalGlobal),
        check=hf_fits.check_longformer,
        heads=kin("Longformer", *_THREE),
        otherwise={"choice": "its class makes the tokens of the question global"},
    ),
    HfClass(
        model_type="roberta", family="roberta", check=hf_fits.check_roberta, heads=kin("Roberta", *_THREE, "choice")
    ),
    HfClass(
        model_type="t5",
        family="t5",
        check=hf_fits.check_t5,
        heads=kin("T5", "sequence", "spans"),
        otherwise={"tokens": "its class reads the encoder's output where ours reads the decoder's"},
    ),
    HfClass(model_type="marian", family="transformer", check=hf_fits.check_marian),
    HfClass(model_type="bart", family="bart", check=hf_fits.check_bart, heads=kin("Bart", "sequence", "spans")),
    _llama(
        model_type="deepseek_v2",
        takes=lambda model: model.latent_attention is not None and _experts(model, "softmax"),
        check=hf_fits.check_deepseek_v2,
        heads=kin("DeepseekV2", "sequence"),
    ),
    _llama(
        model_type="deepseek_v3",
        takes=lambda model: model.latent_attention is not None,
        check=hf_fits.check_deepseek_v3,
        heads=kin("DeepseekV3", "sequence", "tokens"),
    ),
    _llama(
        model_type="dots1", takes=lambda model: _experts(model, "sigmoid") and model.qk_norm, check=hf_fits.check_dots1
    ),
    _llama(
        model_type="olmoe",
        takes=lambda model: _experts(model) and model.qk_norm_span == "all_heads",
        check=hf_fits.check_olmoe,
    ),
    _llama(
        model_type="qwen3_moe",
        takes=lambda model: _experts(model) and model.qk_norm,
        check=hf_fits.check_qwen3_moe,
        heads=kin("Qwen3Moe", *_THREE),
    ),
    _llama(model_type="mixtral", takes=_experts, check=hf_fits.check_mixtral, heads=kin("Mixtral", *_THREE)),
    _llama(
        model_type="bloom",
        takes=lambda model: model.positions.name == "alibi",
        check=hf_fits.check_bloom,
        heads=kin("Bloom", *_THREE),
    ),
    _llama(
        model_type="gemma2",
        takes=lambda model: model.norm == "sandwich" and not model.qk_norm,
        check=hf_fits.check_gemma2,
        heads=kin("Gemma2", "sequence", "tokens"),
    ),
    _llama(
        model_type="gemma3_text",
        takes=lambda model: model.norm == "sandwich",
        check=hf_fits.check_gemma3,
        heads=kin("Gemma3Text", "sequence"),
    ),
    _llama(
        model_type="qwen3", takes=lambda model: model.qk_norm, check=hf_fits.check_qwen3, heads=kin("Qwen3", *_THREE)
    ),
    _llama(
        model_type="qwen2",
        takes=lambda model: model.has_qkv_bias,
        check=hf_fits.check_qwen2,
        heads=kin("Qwen2", *_THREE),
    ),
    _llama(
        model_type="mistral",
        takes=lambda model: bool(hf_fits.windows(model)) or model.hidden % model.heads > 0,
        check=hf_fits.check_mistral,
        heads=kin("Mistral", *_THREE),
    ),
    _llama(model_type="llama", check=hf_fits.check_llama, heads=kin("Llama", *_THREE)),
)
HF_TABLE = {row.model_type: row for row in _ROWS}
"""`model_type` -> class. Of a family's classes a model is exported to the first that takes it."""
