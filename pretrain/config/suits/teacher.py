"""Runs with a teacher."""

from collections.abc import Sequence

from pretrain.config.attention import Dense
from pretrain.config.distillation import Distillation
from pretrain.config.model import Model
from pretrain.config.run_sections import RunSections


def check_distillation(config: RunSections) -> None:
    """Raises ValueError for a teacher, or for settings, that do not suit the run."""
    settings, model = config.distillation, config.model
    if settings.teacher is None:
        return
    head = model.task_head
    if config.objective.loss not in ("tokens", "classes") or (head is not None and head.language_model):
        raise ValueError(
            f"distillation.teacher is for losses of tokens or classes alone, and the loss of objective.name="
            f"{config.objective.name} is {config.objective.loss}: leave it out, or choose masked or causal without a "
            "question about segments, or classification or tagging without a language model"
        )
    if "order" in config.objective.columns:
        raise ValueError(
            f"distillation.teacher is compared at all tokens of an encoder, and rows of objective.name="
            f"{config.objective.name} predict at places beside them: leave it out, or choose masked"
        )
    if head is not None and settings.cosine_weight:
        raise ValueError(
            "distillation.cosine_weight is for losses of tokens: leave it out for classes, or set "
            "distillation.hidden_weight"
        )
    if config.objective.z_loss:
        raise ValueError("objective.z_loss does nothing to a teacher's logits: leave it out with distillation.teacher")
    if model.is_encoder_decoder:
        raise ValueError("distillation.teacher is for encoders and decoders: leave it out for an encoder-decoder")
    if config.precision == "fp8":
        raise ValueError("distillation.teacher is for fp32, bf16 and fp16: set precision")
    if settings.start_layers is not None:
        _check_start_layers(settings.start_layers, model, config.run.start_from)
    if settings.compares_layers:
        _check_layers_can_be_compared(config)
    if (teacher := settings.model) is not None:
        if settings.start_layers is not None and teacher.mup != model.mup:
            raise ValueError(
                "distillation.start_layers takes weights of the teacher, which with another model.mup would give "
                "other answers: make them equal, or leave one out"
            )
        _check_teacher(model, teacher, settings.cosine_weight)
        if settings.compares_layers:
            _check_matched_layers(settings, model, teacher)


def _check_start_layers(layers: Sequence[int], model: Model, start_from: str | None) -> None:
    """Raises ValueError for `distillation.start_layers` that are not one of the teacher's for each of the model's."""
    if start_from is not None:
        raise ValueError("run.start_from and distillation.start_layers both say what weights begin as: set one of them")
    if len(layers) != model.layers or len(set(layers)) != len(layers):
        raise ValueError(
            f"distillation.start_layers={list(layers)} names {len(set(layers))} layers, and model.layers="
            f"{model.layers}: name one for each"
        )


def _check_layers_can_be_compared(config: RunSections) -> None:
    """Raises ValueError for a layout or a model whose layers cannot be compared with a teacher's."""
    parallel, model = config.parallel, config.model
    keys = "distillation.hidden_weight and distillation.attention_weight"
    for key, value, instead in (
        ("parallel.pipeline", parallel.pipeline, 1),
        ("parallel.context", parallel.context, 1),
        ("parallel.recompute", parallel.recompute, "none"),
    ):
        if value != instead:
            raise ValueError(
                f"{keys} compare layers where all of both models and all positions are, as they were computed: set "
                f"{key}={instead} in place of {value}"
            )
    if model.has_decoder or model.shared_layers or model.last_layer_uses or model.capabilities.query_stream:
        raise ValueError(f"{keys} are for encoders whose layers are their own: leave them out for {model.family}")


def _check_matched_layers(settings: Distillation, model: Model, teacher: Model) -> None:
    """Raises ValueError for layers that the teacher lacks, and for scores that cannot be compared."""
    layers = settings.match_layers
    if layers is None and teacher.layers % model.layers:
        raise ValueError(
            f"the model of distillation.teacher has {teacher.layers} layers, no multiple of model.layers="
            f"{model.layers}: set distillation.match_layers"
        )
    if layers is not None and (len(layers) != model.layers or list(layers) != sorted(set(layers))):
        raise ValueError(
            f"distillation.match_layers={list(layers)} is not one layer of the teacher for each of model.layers="
            f"{model.layers}, in order: name one for each"
        )
    if layers is not None and layers[-1] >= teacher.layers:
        raise ValueError(
            f"distillation.match_layers={list(layers)} names layer {layers[-1]}, and the model of distillation.teacher "
            f"has {teacher.layers}, counted from 0: choose others"
        )
    if not settings.attention_weight:
        return
    for one in (model, teacher):
        if one.positions.name not in ("learned", "sinusoidal") or one.num_kv_heads != one.heads:
            raise ValueError(
                "distillation.attention_weight compares scores that are products of queries and keys alone: leave it "
                f"out with model.positions={one.positions.name} or shared keys"
            )
    if model.heads != teacher.heads:
        raise ValueError(
            f"the model of distillation.teacher has {teacher.heads} heads, and this model {model.heads}: choose a "
            "teacher with as many, or distillation.attention_weight=0"
        )


def _check_teacher(model: Model, teacher: Model, cosine_weight: float) -> None:
    """Raises ValueError for a teacher that cannot read the model's rows, or whose predictions are of other tokens."""
    for key, ours, theirs in (
        ("shape", model.shape, teacher.shape),
        ("vocabulary", model.vocabulary, teacher.vocabulary),
        ("vocabulary_multiple", model.vocabulary_multiple, teacher.vocabulary_multiple),
        ("hidden", model.hidden, teacher.hidden),
        ("task_head", model.task_head, teacher.task_head),
    ):
        if ours != theirs and (key != "hidden" or cosine_weight) and (key != "vocabulary" or ours is not None):
            without = ", or distillation.cosine_weight=0" if key == "hidden" else ""
            raise ValueError(
                f"the model of distillation.teacher has {key} {theirs}, and this model {ours}: choose a teacher with "
                f"the same{without}"
            )
    if teacher.sequence_length < model.sequence_length:
        raise ValueError(
            f"distillation.teacher reads {teacher.sequence_length} positions, fewer than "
            f"model.sequence_length={model.sequence_length}: shorten it, or choose another teacher"
        )
    dense = all(kind == Dense() for one in (model, teacher) for kind in one.attention.kinds)
    if not dense and model.attention != teacher.attention:
        raise ValueError(
            "rows of sparse patterns are prepared for one pattern of attention: choose a distillation.teacher with the "
            "same model.attention"
        )
