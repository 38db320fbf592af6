"""Parameters that a fine-tuned model does not share with the model whose weights it starts from."""

from pathlib import Path

from pretrain.checkpoint.state import Record, config_of
from pretrain.config.finetune import Finetune, Lora
from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.model_spec.generator import generator_specs
from pretrain.model_spec.heads import TEACHER_PROJECTION
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.mtp import PREFIX as MTP
from pretrain.model_spec.router_biases import router_bias_shapes
from pretrain.run_dir.paths import RECORD


def replaced_head(checkpoint: Path, model: Model) -> tuple[set[str], set[str]]:
    """(names in the state of an engine of `model` that keep their initial values, names in `checkpoint` that are not
    read): parameters of the heads and of projections to a teacher's size, where these differ, and those that
    `finetune.lora`, `finetune.adapters` or a new encoder in front adds. A parameter of the same name and shape in both
    is read. Raises ConfigError for a checkpoint with another `finetune.lora` or `finetune.adapters`."""
    start_config = config_of(Record.read(checkpoint / RECORD))
    start = start_config.model
    if start.finetune.lora is not None and not _same_matrices(start.finetune.lora, model.finetune.lora):
        raise ConfigError(
            f"run.start_from={checkpoint} has updates of finetune.lora={start.finetune.lora.model_dump(mode='json')}, "
            "which this run would not read: set the same finetune.lora, or start from the run that it was trained from"
        )
    adapters = start.finetune.adapters
    if adapters is not None and adapters != model.finetune.adapters:
        raise ConfigError(
            f"run.start_from={checkpoint} has adapters of finetune.adapters={adapters.model_dump(mode='json')}, which "
            "this run would not read: set the same finetune.adapters, or start from the run that it was trained from"
        )
    added = _added_names(model) - _added_names(start)
    ours, theirs = _head_shapes(model), _head_shapes(start)
    if model.task_head is None and start.task_head is None:
        ours, theirs = _beside_logits(ours), _beside_logits(theirs)
    fresh = {name for name, shape in ours.items() if theirs.get(name) != shape}
    of_generator = {f"model/{spec.name}" for spec in generator_specs(start_config)}
    return fresh | added, (theirs.keys() - ours.keys()) | (fresh & theirs.keys()) | of_generator


def _same_matrices(start: Lora, trained: Lora | None) -> bool:
    """Whether both have the same updates. Dropout, and what else is trained at which rate, may differ."""
    keys = "rank", "alpha", "targets"
    return trained is not None and all(getattr(trained, key) == getattr(start, key) for key in keys)


def _head_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Shapes of what lies behind the last layer, biases of routers included, by their names in an engine's state."""
    depth = sum(model.stacks) + 1
    biases = {name: shape for name, shape in router_bias_shapes(model).items() if name.startswith(MTP)}
    specs = (spec for spec in parameter_specs(model) if spec.depth == depth and spec.alias_of is None)
    return {f"model/{name}": shape for name, shape in [*((spec.name, spec.shape) for spec in specs), *biases.items()]}


def _beside_logits(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Shapes of the projection to a teacher's hidden size, and of what predicts further tokens."""
    prefixes = f"model/{TEACHER_PROJECTION}", f"model/{MTP}"
    return {name: shape for name, shape in shapes.items() if name.startswith(prefixes)}


def _added_names(model: Model) -> set[str]:
    """Names in an engine's state of the parameters that `finetune.lora`, `finetune.adapters` or an encoder in front
    adds."""
    without = model.without_front_encoder().trained_by(Finetune())
    plain = {spec.name for spec in parameter_specs(without)}
    return {f"model/{spec.name}" for spec in parameter_specs(model) if spec.name not in plain and not spec.alias_of}
