"""Class of Hugging Face's transformers that a model is exported to, or the reason why there is none: without that
library, so that the end of a run can say it. `interop/hf` converts models to these classes."""

from data_pipeline.common.plugins import Registry
from data_pipeline.recipes.choice import Choice
from data_pipeline.recipes.objective import Objective
from pretrain.config.classics import declared
from pretrain.config.families import CAPABILITIES
from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.model_spec.hf_class import HfClass, Kind
from pretrain.model_spec.hf_mup import without_mup
from pretrain.model_spec.hf_table import HF_TABLE

KINDS: dict[Kind, str] = {
    "sequence": "sequence classification",
    "tokens": "token classification",
    "spans": "question answering",
    "span": "question answering with a conditional end",
    "choice": "multiple choice",
    "detector": "replaced token detection",
}

_GROUP = "pretrain.hf_classes"
HF_CLASSES: Registry[HfClass] = Registry(_GROUP, {}, HfClass, declared(_GROUP))
"""Classes of `pretrain/classics` and of packages, by the names of their families, or by their own."""


def by_model_type() -> dict[str, HfClass]:
    """All classes, by `model_type` in config.json: where several have it, a row of `HF_TABLE`, or else the last."""
    return HF_TABLE | {one.model_type: one for one in HF_CLASSES.values()} | HF_TABLE


def class_of(model: Model) -> HfClass:
    """The class that `model` is exported to. Raises ConfigError for a family that a package adds without one or that
    transformers lacks, and for a model with adapters or a source encoder."""
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
    rows = (*HF_CLASSES.built_in.values(), *HF_TABLE.values())
    taken = next((one for one in rows if one.family == model.family and one.takes(model)), None)
    if (found := taken or HF_CLASSES.get(model.family)) is None:
        raise ConfigError(
            f"model.family={model.family} comes from an installed package, and Hugging Face has no class for it: it "
            "cannot be exported"
        )
    return found


def name_apart(one: HfClass) -> str | None:
    """The name under which `pretrain/classics` or a package declares the class; None: it is a row of `HF_TABLE`."""
    if HF_TABLE.get(one.model_type) is one:
        return None
    return next(name for name, apart in HF_CLASSES.items() if apart is one)


def kind_of(objective: Objective) -> Kind:
    """The kind of class that has the head of `objective`."""
    head = objective.task_head
    assert head is not None, "the caller looks"
    if head.kind != "token":
        return head.kind
    return "spans" if objective.loss == "spans" else "tokens"


def head_class(one: HfClass, objective: Objective) -> str:
    """The name of the class with the task head of `objective`. Raises ConfigError where transformers has no such class,
    or one with another head."""
    kind = kind_of(objective)
    why = one.otherwise.get(kind)
    name = None if why is not None else one.heads.get(kind)
    if name is None:
        because = "" if why is None else f", as {why}"
        without = "; its encoder can (export --encoder)" if one.encoder_alone else ""
        raise ConfigError(
            f"a {one.model_type} model for {objective.name} has no class for {KINDS[kind]} in Hugging Face's "
            f"transformers that computes the same{because}: it cannot be exported{without}"
        )
    return name


def check_export(config: RunConfig) -> None:
    """Raises ConfigError, as an export would, for a run whose model no class of transformers has, by what its config
    says."""
    if config.objective.backward:
        raise ConfigError("a model that reads backward has no class in transformers: it cannot be exported")
    model, _ = without_mup(config.model.model_copy(update={"mtp": None}))
    one = class_of(model)
    one.check(model)
    if model.task_head is not None:
        head_class(one, config.objective)
        check_choice(model, config.objective)


def check_choice(model: Model, objective: Objective) -> None:
    """Raises ConfigError for choices whose class has a language-model head besides, where the model has none."""
    double = isinstance(objective, Choice) and model.is_causal and model.family == "gpt"
    if double and not model.has_vocabulary_logits and not model.tie_word_embeddings:
        raise ConfigError(
            f"{class_of(model).heads['choice']} has a language-model head beside that of choices, and this model was "
            "trained without it: set objective.language_model_weight"
        )


def has_encoder_alone(model: Model) -> bool:
    """Whether the model's encoder is exported without its head (`export --encoder`)."""
    try:
        plain, _ = without_mup(model.model_copy(update={"mtp": None}))
        headless = plain.headless()
        one = class_of(headless)
        one.check(headless)
    except ConfigError:
        return False
    return one.encoder_alone
