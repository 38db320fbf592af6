"""Parameters that fine-tuning trains, their learning rates, and the updates from which on they are trained."""

from dataclasses import replace

from pretrain.config.model import Model
from pretrain.model_spec.embeddings import STACK_NAMES, WORD_EMBEDDINGS
from pretrain.model_spec.heads import TEACHER_PROJECTION
from pretrain.model_spec.layer import final_norm
from pretrain.model_spec.mtp import PREFIX as MTP
from pretrain.model_spec.parameter_spec import ParameterSpec
from pretrain.model_spec.slots import specs_apart


def with_trained(model: Model, specs: list[ParameterSpec]) -> list[ParameterSpec]:
    """`specs`, of which those that `finetune` freezes are marked. An alias is frozen where its original is."""
    finetune, head_depth = model.finetune, sum(model.stacks) + 1
    if finetune.train == "all" and finetune.lora is None and finetune.adapters is None:
        return specs
    first_depth = max(1, head_depth - (finetune.layers or 0))

    def is_trained(spec: ParameterSpec) -> bool:
        if finetune.train == "source_encoder":
            return any(part.trained_first(spec.name) for part in specs_apart(model))
        if finetune.lora is None and finetune.adapters is None:
            return spec.depth >= first_depth
        if model.task_head is not None and spec.depth == head_depth:
            return True
        if finetune.lora is not None:
            return _is_lora(spec) or _saved_module(model, spec) in finetune.lora.modules_to_save
        return _is_adapter(spec) or _is_norm(spec)

    trained = {spec.name for spec in specs if is_trained(spec)}
    return [replace(spec, trained=(spec.alias_of or spec.name) in trained) for spec in specs]


def with_rates(model: Model, specs: list[ParameterSpec]) -> list[ParameterSpec]:
    """`specs` with the learning rates of `finetune.rate_decay` and the order of `finetune.unfreeze_steps`. ELECTRA
    counts the head as two above the last layer (google-research/electra, model/optimization.py, `_get_layer_lrs`)."""
    finetune = model.finetune
    if finetune.lora is not None and finetune.lora.modules_to_save:
        rates = {"embedding": finetune.lora.embedding_rate, "head": finetune.lora.head_rate}
        specs = [replace(spec, lr_mult=rates.get(_saved_module(model, spec), 1.0)) for spec in specs]
    if finetune.rate_decay == 1 and not finetune.unfreeze_steps:
        return specs
    below = {spec.name: _layers_below_head(model, spec) for spec in specs if spec.alias_of is None}
    order = sorted({below[spec.name] for spec in specs if spec.alias_of is None and spec.trained})
    return [
        replace(
            spec,
            lr_mult=spec.lr_mult * (finetune.rate_decay ** (depth + 1) if depth else 1.0),
            frozen_updates=finetune.unfreeze_steps * order.index(depth) if spec.trained else 0,
        )
        for spec in specs
        for depth in [below[spec.alias_of or spec.name]]
    ]


def _layers_below_head(model: Model, spec: ParameterSpec) -> int:
    """0 for the head and for the norm that follows the last layer, 1 for that layer, one more than the number of layers
    for embeddings. Encoder layers are below decoder layers."""
    layers = sum(model.stacks)
    stack = max(stack for stack, count in enumerate(model.stacks) if count)
    last = f"{STACK_NAMES[stack]}.layers.{model.stacks[stack] - 1}."
    follows = model.norm_first and spec.depth == layers and spec.name.startswith(final_norm(model, last))
    return 0 if follows else layers + 1 - spec.depth


def _is_lora(spec: ParameterSpec) -> bool:
    return spec.name.endswith((".lora_a.weight", ".lora_b.weight"))


def _saved_module(model: Model, spec: ParameterSpec) -> str:
    """The name in `finetune.lora.modules_to_save` of the module that a parameter belongs to; "": it is of none."""
    if (spec.alias_of or spec.name) == WORD_EMBEDDINGS:
        return "embedding"
    behind = spec.depth > sum(model.stacks) and not spec.name.startswith((MTP, TEACHER_PROJECTION))
    return "head" if behind and not _is_lora(spec) else ""


def _is_adapter(spec: ParameterSpec) -> bool:
    return ".adapter." in spec.name


def _is_norm(spec: ParameterSpec) -> bool:
    return spec.name.split(".")[-2].endswith("norm")
