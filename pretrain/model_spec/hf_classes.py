"""Class of Hugging Face's transformers that a model is exported to, or the reason why there is none: without that
library, so that the end of a run can say it. `checkpoint/hf` converts models to these classes."""

from collections.abc import Callable, Mapping
from typing import Any

from data_pipeline.recipes.choice import Choice
from data_pipeline.recipes.objective import Objective
from pretrain.config.attention import Banded
from pretrain.config.families import CAPABILITIES
from pretrain.config.model import Model
from pretrain.config.patterns.bands import LocalGlobal
from pretrain.config.patterns.blocks import BigBird
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.model_spec.hf_class import HF_CLASSES, HfClass, Kind, declared_class, kin
from pretrain.model_spec.hf_fits import check_class, windows
from pretrain.model_spec.hf_mup import without_mup

KINDS: dict[Kind, str] = {
    "sequence": "sequence classification",
    "tokens": "token classification",
    "spans": "question answering",
    "span": "question answering with a conditional end",
    "choice": "multiple choice",
    "detector": "replaced token detection",
}
_RELU = "the dense layer before the classifier of DistilBERT's class ends with ReLU, and that of a BERT with tanh"


def _experts(model: Model, scores: str | None = None) -> bool:
    return model.experts is not None and scores in (None, model.experts.scores)


def _any(model: Model) -> bool:
    return True


_TAKES: dict[str, tuple[tuple[str, Callable[[Model], bool]], ...]] = {
    "gpt": (("gpt2", _any),),
    "bert": (
        ("big_bird", lambda model: any(isinstance(pattern, BigBird) for pattern in model.attention.kinds)),
        ("distilbert", lambda model: not model.segments and not model.binary_head),
        ("bert", _any),
    ),
    "roberta": (  # nothing in a model says that its vocabulary is of many languages, as XLM-RoBERTa's is
        (
            "longformer",
            lambda model: any(isinstance(pattern, Banded | LocalGlobal) for pattern in model.attention.kinds),
        ),
        ("roberta", _any),
    ),
    "t5": (("t5", _any),),
    "transformer": (("marian", _any),),
    "bart": (("bart", _any),),
    "llama": (
        ("deepseek_v2", lambda model: model.latent_attention is not None and _experts(model, "softmax")),
        ("deepseek_v3", lambda model: model.latent_attention is not None),
        ("dots1", lambda model: _experts(model, "sigmoid") and model.qk_norm),
        ("olmoe", lambda model: _experts(model) and model.qk_norm_span == "all_heads"),
        ("qwen3_moe", lambda model: _experts(model) and model.qk_norm),
        ("mixtral", _experts),
        ("bloom", lambda model: model.positions.name == "alibi"),
        ("gemma2", lambda model: model.norm == "sandwich" and not model.qk_norm),
        ("gemma3_text", lambda model: model.norm == "sandwich"),
        ("qwen3", lambda model: model.qk_norm),
        ("qwen2", lambda model: model.has_qkv_bias),
        ("mistral", lambda model: bool(windows(model)) or model.hidden % model.heads > 0),
        ("llama", _any),
    ),
}
"""our family -> `model_type` of the classes that its models are exported to: the first that takes the model"""


_THREE: tuple[Kind, Kind, Kind] = ("sequence", "tokens", "spans")
_HEADS: dict[str, dict[Kind, str]] = {
    "gpt2": kin("GPT2", *_THREE) | {"choice": "GPT2DoubleHeadsModel"},
    "big_bird": kin("BigBird", "tokens", "choice"),
    "distilbert": kin("DistilBert", "tokens", "spans"),
    "bert": kin("Bert", *_THREE, "choice"),
    "xlm-roberta": kin("XLMRoberta", *_THREE, "choice"),
    "longformer": kin("Longformer", *_THREE),
    "roberta": kin("Roberta", *_THREE, "choice"),
    "t5": kin("T5", "sequence", "spans"),
    "bart": kin("Bart", "sequence", "spans"),
    "deepseek_v2": kin("DeepseekV2", "sequence"),
    "deepseek_v3": kin("DeepseekV3", "sequence", "tokens"),
    "qwen3_moe": kin("Qwen3Moe", *_THREE),
    "mixtral": kin("Mixtral", *_THREE),
    "bloom": kin("Bloom", *_THREE),
    "gemma2": kin("Gemma2", "sequence", "tokens"),
    "gemma3_text": kin("Gemma3Text", "sequence"),
    "qwen3": kin("Qwen3", *_THREE),
    "qwen2": kin("Qwen2", *_THREE),
    "mistral": kin("Mistral", *_THREE),
    "llama": kin("Llama", *_THREE),
}
"""`model_type` -> classes of fine-tuned models by kind of head"""

_OTHERWISE: dict[str, Mapping[Kind, str]] = {
    "big_bird": {
        "sequence": "its class has the activation of its layers where ours has tanh",
        "spans": "its class has two more layers",
    },
    "distilbert": {"sequence": _RELU, "choice": _RELU},
    "longformer": {"choice": "its class makes the tokens of the question global"},
    "t5": {"tokens": "its class reads the encoder's output where ours reads the decoder's"},
}
"""`model_type` -> why a class that transformers has for a kind of head computes something else"""


def model_type_of(model: Model) -> str:
    """`model_type` in the config.json of an export of `model`. Raises ConfigError for a family that a package adds or
    that transformers lacks, and for a model with adapters or a source encoder."""
    if (key := model.front_encoder_key) is not None:
        raise ConfigError(
            f"model.{key} lies in front of the model's own encoder, which no class of transformers has: the checkpoint "
            "cannot be exported"
        )
    if model.mup is not None:
        raise ConfigError(
            "model.mup multiplies activations, for which no class of transformers has a place: export with --to hf, "
            "which multiplies weights instead"
        )
    if model.finetune.adapters is not None:
        raise ConfigError(
            "finetune.adapters are layers that no class of transformers has: the checkpoint cannot be exported"
        )
    if (reason := model.capabilities.without_hf_class) is not None:
        raise ConfigError(f"no class of transformers {reason}: the checkpoint cannot be exported")
    for key in model.parts_apart:
        if model.family in CAPABILITIES.built_in and key not in model.capabilities.parts:
            raise ConfigError(
                f"model.{key} comes from an installed package, and no class of transformers for the {model.family} "
                "family has it: the checkpoint cannot be exported"
            )
    if (name := name_apart(model)) is not None:
        return HF_CLASSES[name].model_type
    if model.family not in _TAKES:
        raise ConfigError(
            f"model.family={model.family} comes from an installed package, and Hugging Face has no class for it: it "
            "cannot be exported"
        )
    return next(model_type for model_type, takes in _TAKES[model.family] if takes(model))


def name_apart(model: Model) -> str | None:
    """The name under which `pretrain/classics` or a package declares the class of `model`; None: there is none, or it
    is one of the table above."""
    if model.family not in _TAKES:
        return model.family if model.family in HF_CLASSES else None
    further = HF_CLASSES.built_in.items()
    return next((name for name, one in further if one.family == model.family and one.takes(model)), None)


def kind_of(objective: Objective) -> Kind:
    """The kind of class that has the head of `objective`."""
    head = objective.task_head
    assert head is not None, "the caller looks"
    if head.kind != "token":
        return head.kind
    return "spans" if objective.loss == "spans" else "tokens"


def head_class(model_type: str, objective: Objective, declared: HfClass | None = None) -> str:
    """The class of a `model_type` with the task head of `objective`. `declared`: what the model's family declares of
    it, where several families have it. Raises ConfigError where transformers has no such class, or one with another
    head."""
    kind, declared = kind_of(objective), declared or declared_class(model_type)
    heads: Mapping[Kind, str] = _HEADS.get(model_type, {})
    others: Mapping[Kind, str] = _OTHERWISE.get(model_type, {})
    if declared is not None:
        heads, others = declared.heads, declared.otherwise
    why = others.get(kind)
    name = None if why is not None else heads.get(kind)
    if name is None:
        because = "" if why is None else f", as {why}"
        without = "; its encoder can (export --encoder)" if _has_encoder_alone(model_type) else ""
        raise ConfigError(
            f"a {model_type} model for {objective.name} has no class for {KINDS[kind]} in Hugging Face's "
            f"transformers that computes the same{because}: it cannot be exported{without}"
        )
    return name


def check_export(config: RunConfig) -> None:
    """Raises ConfigError, as an export would, for a run whose model no class of transformers has, by what its config
    says."""
    if config.objective.backward:
        raise ConfigError("a model that reads backward has no class in transformers: it cannot be exported")
    model, _ = without_mup(config.model.model_copy(update={"mtp": None}))
    model_type = model_type_of(model)
    _check(model, model_type)
    if model.task_head is not None:
        head_class(model_type, config.objective, HF_CLASSES.get(model.family))
        check_choice(model, config.objective)


def check_choice(model: Model, objective: Objective) -> None:
    """Raises ConfigError for choices whose class has a language-model head besides, where the model has none."""
    double = isinstance(objective, Choice) and model.is_causal and model.family == "gpt"
    if double and not model.has_vocabulary_logits and not model.tie_word_embeddings:
        name = head_classes()[model_type_of(model)]["choice"]
        raise ConfigError(
            f"{name} has a language-model head beside that of choices, and this model was trained without it: set "
            "objective.language_model_weight"
        )


def has_encoder_alone(model: Model) -> bool:
    """Whether the model's encoder is exported without its head (`export --encoder`)."""
    try:
        plain, _ = without_mup(model.model_copy(update={"mtp": None}))
        headless = plain.headless()
        model_type = model_type_of(headless)
        _check(headless, model_type)
    except ConfigError:
        return False
    return _has_encoder_alone(model_type)


def head_classes() -> dict[str, dict[Kind, Any]]:
    """All names, for whoever converts models to these classes."""
    declared = {one.model_type: one.heads for one in HF_CLASSES.values()}
    return {model_type: dict(names) for model_type, names in (_HEADS | declared).items() if names}


def _check(model: Model, model_type: str) -> None:
    """Raises ConfigError for a model that the class with that `model_type` cannot express."""
    if (name := name_apart(model)) is not None:
        HF_CLASSES[name].check(model)
    else:
        check_class(model, model_type)


def _has_encoder_alone(model_type: str) -> bool:
    declared = declared_class(model_type)
    return declared is not None and declared.encoder_alone
