"""A lower bound of the bytes that a rank holds, part by part: computed at once for a model of any size. No torch."""

from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.model_spec.generator import generator_specs
from pretrain.model_spec.parameters import num_expert_parameters, num_parameters, num_trained_parameters
from pretrain.plan.memory import trained_state

_LISTED_LAYERS = 16  # of more, parameters are not listed but counted on from the first ones
_ID_BYTES, _TOKEN_BYTES = 24, 8
# What a layer's modules, hooks and names take in Python, beside its tensors: the least measured of a GPT, a Llama, a T5
# and a Gemma 2 of 400 layers on a CPU. After a training step it was up to 1,040e3.
_LAYER_BYTES, _TRAINED_LAYER_BYTES = 99e3, 559e3
_GIB = 2**30


def check_bound(
    config: RunConfig, layout: Layout, available_bytes: float, *, host: bool = True, trains: bool = True
) -> None:
    """Raises ConfigError if a rank of `layout` with `available_bytes` of memory can't even hold the lower bound.
    `host`: whether this is the memory of a host, which also holds batches and modules."""
    parts = least_bytes(config, layout, trains)
    if host:
        parts["modules"] = (
            sum(config.model.stacks) / layout.pipeline * (_TRAINED_LAYER_BYTES if trains else _LAYER_BYTES)
        )
    else:
        del parts["batches"]
        for name, offloaded in (
            ("optimizer states", config.parallel.offload_optimizer),
            ("weights", config.parallel.offload_parameters),
        ):
            if offloaded:
                parts[name] = 0.0
    total = sum(parts.values())
    if total <= available_bytes:
        return
    shares = ", ".join(f"{name} {size / _GIB:,.1f}" for name, size in parts.items() if size > total / 1000)
    largest = max(parts, key=lambda name: parts[name])
    raise ConfigError(
        f"this run does not fit in memory: each rank would hold at least {total / _GIB:,.1f} GiB ({shares}) and has "
        f"{available_bytes / _GIB:,.1f}; {_advice(largest, config, available_bytes / total)}"
    )


def _held_of(model: Model, layout: Layout) -> float:
    """Parameters that ranks hold on average of a model that data ranks do not shard."""
    of_experts = num_expert_parameters(model)
    others = (count_parameters(model) - of_experts) / layout.tensor
    return (others + of_experts / (layout.expert_tensor * layout.expert)) / layout.pipeline


def least_bytes(config: RunConfig, layout: Layout, trains: bool = True) -> dict[str, float]:
    """Bytes by part that the fullest rank holds at least: it has no fewer parameters than ranks have on average, and
    keeps the input of each of its layers for the backward pass."""
    model, batch = config.model, config.batch
    of_generator = 0.0 if config.generator_model is None else float(sum(spec.size for spec in generator_specs(config)))
    every = count_parameters(model) + of_generator, count_parameters(model, trained=True) + of_generator
    parameters, trained = (count / (layout.tensor * layout.pipeline) for count in every)
    width = 4 if config.precision == "fp32" else 2
    if not trains:
        return {"weights": width * parameters, "batches": 0.0}
    shared = (0.0, 0.0)
    if layout.regroups_experts:
        of_experts, trained_of_experts = num_expert_parameters(model), num_expert_parameters(model, trained=True)
        ranks = layout.expert_tensor * layout.pipeline
        shared = of_experts / ranks, trained_of_experts / ranks
        parameters += shared[0] * (1 - layout.expert_tensor / layout.tensor)  # which tensor ranks do not split
        trained += shared[1] * (1 - layout.expert_tensor / layout.tensor)
    moments = config.optimizer.num_moments
    state = trained_state(parameters, trained, layout, config.precision, moments=moments, of_experts=shared)
    positions = batch.micro_sequences * model.sequence_length / layout.context
    slices = layout.tensor if layout.sequence else 1
    layers = _layers_backward(model) / layout.pipeline
    teacher = config.distillation.model
    return {
        "weights": state.weights,
        "teacher": width * _held_of(teacher, layout) if teacher else 0.0,
        "gradients": state.gradients,
        "optimizer states": state.optimizer,
        "activations": layers * positions * model.hidden * width / slices,
        "memory of rows": 8 * batch.sequences / layout.data * model.memory_length * layers * model.hidden,
        "batches": batch.sequences * (_ID_BYTES + _TOKEN_BYTES * model.sequence_length / layout.data),
    }


def count_parameters(model: Model, trained: bool = False) -> int:
    """The same as `num_parameters`, or if `trained` as `num_trained_parameters`, at once for any number of layers: all
    layers of a stack are equally large."""
    listed_layers = _LISTED_LAYERS + (0 if model.experts is None else model.experts.dense_layers)
    few = {name: min(value, listed_layers) for name in ("layers", "encoder_layers") if (value := getattr(model, name))}
    if "encoder_layers" not in few and model.is_encoder_decoder:
        few["encoder_layers"] = few["layers"]
    count_listed = num_trained_parameters if trained else num_parameters
    count = count_listed(model.model_copy(update=few))
    if trained and model.finetune.train == "top":  # more layers at the bottom are frozen
        return count
    for name, listed in few.items():
        layers = getattr(model, name) or model.layers
        if layers > listed:
            less = count_listed(model.model_copy(update=few | {name: listed - 1}))
            count += (layers - listed) * (count_listed(model.model_copy(update=few)) - less)
    return count


def _layers_backward(model: Model) -> int:
    """Layers whose parameters are trained, which keep their inputs for that."""
    trained = model.finetune.layers if model.finetune.train == "top" else None
    return 0 if model.finetune.train in ("head", "source_encoder") else trained or sum(model.stacks)


def _advice(largest: str, config: RunConfig, factor: float) -> str:
    """The size that would fit if only the largest part changed, to `factor` of what the config says."""
    match largest:
        case "activations" if config.batch.micro_sequences * factor >= 1:
            fits = int(config.batch.micro_sequences * factor)
            return f"batch.micro_sequences={config.batch.micro_sequences} is too many: {fits} may fit"
        case "activations":
            fits = max(1, int(config.model.sequence_length * factor))
            return f"model.sequence_length={config.model.sequence_length} is too long: {fits} may fit"
        case "modules":
            fits = max(1, int(config.model.layers * factor))
            return f"model.layers={config.model.layers} is too many: {fits} may fit"
        case "batches":
            fits = max(1, int(config.batch.sequences * factor))
            return f"batch.sequences={config.batch.sequences} is too many: {fits} may fit"
        case "teacher":
            return "name a smaller distillation.teacher, or share it over more machines (parallel.tensor or pipeline)"
    parameters = count_parameters(config.model)
    return (
        f"of its {parameters:,} parameters {int(parameters * factor):,} may fit: make the model smaller, or share it "
        "over more machines (parallel.tensor, parallel.pipeline, parallel.zero)"
    )
