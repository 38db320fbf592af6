"""Settings that may be meant, and that seldom are: a run says them, a sentence each, and trains."""

from collections.abc import Iterator

from pretrain.config.attention import Dense
from pretrain.config.health import Health, SpikesAct, SpikesWarn
from pretrain.config.optimizer import MuonOptimizer
from pretrain.config.patterns.function import Function
from pretrain.config.run_config import RunConfig
from pretrain.config.start import recorded_model
from pretrain.data.pointless_settings import pointless_settings, singular_values
from pretrain.errors import ConfigError
from pretrain.run_length.schedule import learning_rate
from pretrain.run_length.segments import run_length

_LARGE_EPS = 1e-3  # gradients of language models are smaller, so that it takes the second moment's place
_LARGE_DECAY = 0.05  # part of a weight that goes in each step
_LARGE_RATE, _SMALL_RATE = 0.1, 1e-8  # of rules whose update is about the rate; fp32 rounds weights of 0.1 at 1e-8
_LARGE_SHARE = 0.5  # of activations that are dropped, of a label that is spread
_LARGE_WEIGHT = 10.0  # of an additional term of the loss, beside 1 of the labels
_LARGE_BIAS_RATE = 0.1  # scores are below 1
_SMALL_CAP = 3.0  # of logits and scores: e^(2 * 3) times as probable as another is the most
_SMALL_K = 3.0  # deviations that many sound steps are beyond
_RULES_OF_RATE = ("adamw", "adam", "lamb", "lion")


def doubtful_settings(config: RunConfig) -> tuple[str, ...]:
    """Warnings about a resolved config: its doubtful settings, and those that a new run would be refused for."""
    return (
        *pointless_settings(config),
        *_beyond_the_end(config),
        *_idle(config),
        *_attention(config),
        *_finetuning(config),
        *_learns_little(config),
        *_terms(config),
    )


def _beyond_the_end(config: RunConfig) -> Iterator[str]:
    """Warnings about settings whose effect the run never reaches."""
    health, schedule, ramp = config.health, config.schedule, config.batch.ramp
    steps, tokens = run_length(config)
    end, unit = (steps, "steps") if schedule.in_steps else (tokens, "tokens")
    decay = getattr(schedule, "decay_length", None)
    if decay is not None and decay > end:
        yield (
            f"schedule.decay_{unit}={decay:,} is longer than the run, which ends after {end:,} {unit}: the learning "
            f"rate ends at {schedule.factor(end, end):.0%} of its peak"
        )
    if schedule.factor(end, end) == 0:
        stops = decay is not None and not schedule.decays_at_end and decay < end
        when = f"from {decay:,} of {end:,} {unit} on" if stops else "in the last step"
        yield (
            f"schedule.final_fraction=0 makes the learning rate 0 {when}, where nothing is trained: set a small one, "
            "such as 0.01"
        )
    if health.hang_s is not None and health.hang_s > max(health.timeout_s / 2, Health().hang_s or 0):
        yield (
            f"health.hang_s={health.hang_s:g} is more than half of health.timeout_s={health.timeout_s} and is "
            f"reduced to {health.timeout_s / 2:g}"
        )
    if ramp is not None and ramp.tokens >= tokens and ramp.start_sequences < config.batch.sequences:
        yield (
            f"batch.ramp.tokens={ramp.tokens:,} is not less than the {tokens:,} tokens of the run, which never has "
            f"batches of batch.sequences={config.batch.sequences}"
        )
    for phase in config.data.phases:
        if phase.tokens >= tokens:
            yield f"the weights of data.phases from {phase.tokens:,} tokens on begin after the end of the run"
    for key, every in (
        ("health.replay_every", health.replay_every),
        ("track.norms_every_steps", config.track.norms_every_steps),
        ("track.activations_every_steps", config.track.activations_every_steps),
    ):
        if every > steps:
            yield f"{key}={every:,} is more than the {steps:,} steps of the run, so that it does nothing"
    if isinstance(health.spike, SpikesWarn | SpikesAct) and health.spike.k < _SMALL_K:
        yield (
            f"health.spike.k={health.spike.k:g} counts sound steps as spikes: {_SMALL_K:g} and more are usual, "
            "and 10 is the default"
        )


def _idle(config: RunConfig) -> Iterator[str]:
    """Keys whose switch is off."""
    evaluate, defaults = config.evaluate, type(config.evaluate).model_fields
    if not evaluate.tasks:
        for key in ("limit", "data"):
            if getattr(evaluate, key) != defaults[key].default:
                yield f"evaluate.{key} does nothing without evaluate.tasks"
        if evaluate.shots != [0]:
            yield "evaluate.shots does nothing without evaluate.tasks"
    if config.track.offline and "wandb" not in config.track.names:
        yield "track.offline does nothing, as track.kind does not name wandb"
    schedule = config.schedule
    if getattr(schedule, "final_fraction", 0) == 1:
        yield f"schedule.final_fraction=1 leaves nothing to decay: schedule.name={schedule.name} is constant"


def _attention(config: RunConfig) -> Iterator[str]:
    """Patterns that no layer has, and patterns that hide nothing."""
    model, attention = config.model, config.model.attention
    layers = max(model.stacks)
    if len(attention.pattern) > layers:
        yield (
            f"model.attention.pattern has {len(attention.pattern)} entries for {layers} layers: no layer has the "
            "last ones"
        )
    if _is_of_start(config):
        return  # the weights were made for longer rows
    length = config.objective.row_length or model.sequence_length
    for kind in dict.fromkeys(attention.layer_pattern(layer) for layer in range(min(layers, len(attention.pattern)))):
        if isinstance(kind, Dense | Function) or kind.projects_keys:
            continue
        causal = not model.has_encoder
        if kind.mean_keys(length, causal) >= Dense().mean_keys(length, causal):
            name, window = getattr(kind, "name", ""), getattr(kind, "window", None)
            reach = f" of window={window}" if window is not None else ""
            yield (
                f"the pattern {name}{reach} in model.attention hides nothing in rows of {length} positions, "
                "so that it is dense"
            )


def _is_of_start(config: RunConfig) -> bool:
    """Whether the attention is that of the weights that the run starts from, or these can no longer be asked."""
    if config.run.start_from is None:
        return False
    try:
        recorded = recorded_model(config.run.start_from).get("attention")
    except ConfigError:
        return True
    return bool(recorded == config.model.attention.model_dump(mode="json"))


def _finetuning(config: RunConfig) -> Iterator[str]:
    """Parts that are trained where they can hardly be of use."""
    finetune, model = config.finetune, config.model
    freezes = finetune.lora is not None or finetune.adapters is not None or finetune.train in ("head", "top")
    drawn = finetune.weights == "random" or (finetune.train == "head" and config.run.start_from is None)
    if freezes and drawn:
        yield "finetune freezes weights that are random in this run and stay so, which is of use to compare with alone"
    if finetune.adapters is not None and finetune.adapters.size > model.hidden:
        yield (
            f"finetune.adapters.size={finetune.adapters.size} is more than model.hidden={model.hidden}, and an "
            "adapter is a bottleneck"
        )
    steps, _ = run_length(config)
    joined, layers = steps // finetune.unfreeze_steps if finetune.unfreeze_steps else 0, sum(model.stacks)
    if 0 < joined < layers:
        yield (
            f"finetune.unfreeze_steps={finetune.unfreeze_steps} lets {joined} of {layers} layers join before the run "
            "ends; the others stay frozen"
        )
    for number, objective in enumerate((config.objective, *(source.objective for source in config.data.sources))):
        if getattr(objective, "name", "") == "text_to_text":
            of = "objective" if not number else f"data.sources.{number - 1}.objective"
            if getattr(objective, "input", "") == getattr(objective, "target", None):
                yield f"{of}.input and target are the same field, so that the model learns to copy it"
    new_tokens, length = config.evaluate.new_tokens, model.target_length or model.sequence_length
    if new_tokens is not None and new_tokens > length:
        yield f"evaluate.new_tokens={new_tokens} is more than the {length} positions of the model, which end answers"


def _learns_little(config: RunConfig) -> Iterator[str]:
    """Settings of the optimizer and of the model that leave little to learn."""
    optimizer, model = config.optimizer, config.model
    rate, decay = optimizer.learning_rate, getattr(optimizer, "weight_decay", 0.0)
    for key in ("eps", "adamw_eps"):
        if optimizer.name in ("adamw", "adam", "lamb", "muon") and getattr(optimizer, key, 0) > _LARGE_EPS:
            if key == "eps" and optimizer.name == "muon":
                continue  # the least norm of a matrix
            yield (
                f"optimizer.{key}={getattr(optimizer, key):g} is more than most gradients, so that updates follow "
                "these and hardly their second moment"
            )
    if rate * decay > _LARGE_DECAY:
        yield (
            f"optimizer.weight_decay={decay:g} at optimizer.learning_rate={rate:g} takes {rate * decay:.0%} of each "
            "weight in every step"
        )
    if optimizer.name in _RULES_OF_RATE and rate > _LARGE_RATE:
        yield (
            f"optimizer.learning_rate={rate:g} moves each weight by about as much in a step of {optimizer.name}, and "
            "weights are smaller"
        )
    end = run_length(config)
    highest = max(learning_rate(config, _at(end, share), end) for share in range(1, 101))
    if optimizer.name in _RULES_OF_RATE and highest < _SMALL_RATE:
        yield f"the learning rate is {highest:.1e} at most, below the rounding of most weights"
    if isinstance(optimizer, MuonOptimizer):
        least, most = singular_values(optimizer)
        if least < 0.3 or most > 2:
            yield (
                f"optimizer.ns_coefficients and ns_steps bring singular values to between {least:.2g} and {most:.2g}, "
                "not near 1"
            )
        clip = optimizer.qk_clip_threshold
        if clip is not None and clip < _SMALL_CAP:
            yield f"optimizer.qk_clip_threshold={clip:g} keeps attention nearly even (Kimi K2: 100)"
    lora = config.finetune.lora
    for key, share in (
        ("model.dropout", model.dropout),
        ("model.attention_dropout", model.attention_dropout),
        ("model.ffn_dropout", model.ffn_dropout),
        ("finetune.lora.dropout", 0.0 if lora is None else lora.dropout),
        ("objective.label_smoothing", config.objective.label_smoothing),
    ):
        if share > _LARGE_SHARE:
            what = "of each label is spread over all ids" if key.endswith("smoothing") else "is dropped"
            yield f"{key}={share:g}: most {what}"
    for key, cap in (
        ("model.final_logit_softcap", model.final_logit_softcap),
        ("model.attention_logit_softcap", model.attention_logit_softcap),
    ):
        if cap is not None and cap < _SMALL_CAP:
            yield f"{key}={cap:g} keeps probabilities nearly even (Gemma 2: 30 and 50)"


def _at(end: tuple[int, int], share: int) -> tuple[int, int]:
    """The position in a run after `share` percent of it, one step at least."""
    return max(1, end[0] * share // 100), max(1, end[1] * share // 100)


def _terms(config: RunConfig) -> Iterator[str]:
    """Weights of terms of the loss that drown the labels, or that make parts of the model idle."""
    model, distillation = config.model, config.distillation
    experts, mtp = model.experts, model.mtp
    weights = {} if experts is None else {
        f"model.experts.{key}": getattr(experts, key) for key in ("z_loss", "balance_loss", "sequence_loss")
    }  # fmt: skip
    weights |= {} if mtp is None else {"model.mtp.loss_scaling_factor": mtp.loss_scaling_factor}
    for key, weight in weights.items():
        if weight > _LARGE_WEIGHT:
            yield f"{key}={weight:g} is a term of the loss beside 1 of the labels, which it drowns"
    if mtp is not None and not mtp.loss_scaling_factor:
        yield "model.mtp.loss_scaling_factor=0 leaves the modules of model.mtp untrained"
    if experts is not None and experts.bias_rate > _LARGE_BIAS_RATE:
        yield (
            f"model.experts.bias_rate={experts.bias_rate:g} moves a bias by more than most scores are in every step, "
            "so that it alone chooses experts (DeepSeek-V3: 0.001)"
        )
    if experts is not None and experts.selection_bias and not experts.bias_rate and config.run.start_from is None:
        yield "model.experts.selection_bias stays 0 with model.experts.bias_rate=0, so that it does nothing"
    if distillation.teacher is not None and distillation.temperature > 100:
        yield f"distillation.temperature={distillation.temperature:g} makes all of the teacher's predictions alike"
