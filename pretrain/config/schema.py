"""What a run can be told: every key of a training config, with its unit.

Configs are frozen once loaded; derived values are properties. `vocabulary` may be left out of a config: it then
follows the tokenizer of the dataset (`build.py` resolves it before anything is built).
"""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from data_pipeline import config as data
from data_pipeline.dataset.cache import DEFAULT_BYTES
from data_pipeline.recipes.lengths import target_length


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _refuse_idle(section: BaseModel, title: str, keys: Iterable[str], under: str = "name") -> None:
    """Raises ValueError if one of `keys`, which do nothing under what `under` of the section is, is not as it is by
    itself."""
    for key in keys:
        value, default = getattr(section, key), type(section).model_fields[key].default
        if value != default:
            raise ValueError(
                f"{title}.{key}={value} does nothing with {title}.{under}={getattr(section, under)}: leave it out"
            )


class Run(Section):
    name: str = Field("run", description="name shown in reports and in MLflow")
    dir: str = Field(description="directory of the run: config.yaml, metrics.jsonl, checkpoints/, reports/")
    start_from: str | None = Field(
        None, description="run or checkpoint whose weights this run begins with; absent: drawn from the seed"
    )
    seed: int = Field(1234, ge=0, description="seed of weights, sample order and dropout")
    deterministic: bool = Field(False, description="ask torch for deterministic kernels (always so on a CPU)")


class Train(Section):
    steps: int | None = Field(None, gt=0, description="optimizer steps to train for")
    tokens: int | None = Field(None, gt=0, description="tokens to train for; the last step is a full batch")

    @model_validator(mode="after")
    def _one_length(self) -> "Train":
        if (self.steps is None) == (self.tokens is None):
            raise ValueError("set exactly one of train.steps and train.tokens")
        return self


class Ramp(Section):
    start_sequences: int = Field(gt=0, description="sequences per global batch at the first token")
    increment_sequences: int = Field(gt=0, description="the batch grows by this many sequences at a time")
    tokens: int = Field(gt=0, description="tokens over which the batch grows linearly to batch.sequences")


class Short(Section):
    sequence_length: int = Field(gt=0, description="tokens per sequence at first, fewer than model.sequence_length")
    steps: int = Field(gt=0, description="optimizer steps with such sequences")


class BatchSize(Section):
    sequences: int = Field(gt=0, description="sequences per global batch (one optimizer step)")
    micro_sequences: int = Field(1, gt=0, description="sequences per forward pass on one data rank")
    ramp: Ramp | None = Field(None, description="batch-size ramp; absent: full batch from the start")
    short: Short | None = Field(None, description="shorter sequences at first (BERT); absent: all of one length")

    @model_validator(mode="after")
    def _ramp_reaches_full_batch(self) -> "BatchSize":
        if self.ramp is not None:
            if self.short is not None:
                raise ValueError("batch.ramp and batch.short both change the size of batches: set one of them")
            gap = self.sequences - self.ramp.start_sequences
            if gap < 0 or gap % self.ramp.increment_sequences:
                raise ValueError(
                    f"batch.ramp cannot reach batch.sequences={self.sequences} from {self.ramp.start_sequences} "
                    f"in steps of {self.ramp.increment_sequences}"
                )
        return self


class Attention(Section):
    pattern: list[Literal["dense", "banded"]] = Field(
        ["dense"], min_length=1, description="attention of layer i is pattern[i mod length]"
    )
    window: int = Field(256, gt=0, description="keys a banded query sees, itself included")

    @property
    def kinds(self) -> tuple[str, ...]:
        """Each pattern once."""
        return tuple(dict.fromkeys(self.pattern))


Family = Literal["gpt", "bert", "roberta", "t5", "transformer", "bart"]
ENCODERS: tuple[Family, ...] = ("bert", "roberta")
ENCODER_DECODERS: tuple[Family, ...] = ("t5", "transformer", "bart")


class Model(Section):
    family: Family = "gpt"
    layers: int = Field(gt=0, description="of the decoder; in a model without one, of the encoder")
    encoder_layers: int | None = Field(
        None, ge=0, description="encoder-decoders; absent: as many as layers; 0 (t5): a decoder alone"
    )
    hidden: int = Field(gt=0, description="width of the residual stream (d_model)")
    heads: int = Field(gt=0)
    head_dim: int | None = Field(None, gt=0, description="width of one head; absent: hidden / heads")
    ffn: int | None = Field(None, gt=0, description="width of the feed-forward layer; absent: 4 * hidden")
    sequence_length: int = Field(gt=0, description="tokens per sequence; of an encoder-decoder, of its input")
    target_length: int | None = Field(
        None, gt=0, description="encoder-decoders: tokens the decoder predicts; absent: what the objective makes"
    )
    vocabulary: int | None = Field(None, gt=0, description="token ids; absent: the tokenizer's, and the objective's")
    vocabulary_multiple: int = Field(
        128, gt=0, description="embedding rows are padded up to a multiple of this, so that tensor ranks can share them"
    )
    norm: Literal["pre", "post"] = Field("pre", description="norm before each sublayer (GPT-2, 3, T5) or after (GPT)")
    norm_type: Literal["layer", "rms"] = Field("layer", description="rms: without mean and bias (T5)")
    norm_eps: float = Field(1e-5, gt=0)
    bias: bool = Field(True, description="linear layers have one")
    activation: Literal["gelu_tanh", "gelu", "relu", "gated_gelu"] = Field(
        "gelu_tanh", description="gelu: exact (BERT); gated_gelu: the tanh form times a second projection (T5 v1.1)"
    )
    positions: Literal["learned", "sinusoidal", "relative"] = Field(
        "learned", description="added to the embeddings, or (relative) to attention scores, by distance (T5)"
    )
    position_offset: int = Field(0, ge=0, description="number of the first position (RoBERTa, BART: 2)")
    relative_buckets: int = Field(32, gt=1, description="distances told apart (relative)")
    relative_distance: int = Field(128, gt=0, description="from which on distances are one (relative)")
    segments: int = Field(0, ge=0, description="kinds of segments with an embedding (BERT: 2)")
    pooled_head: bool = Field(
        False, description="a head on the first position that says whether the second segment follows (BERT)"
    )
    embedding_norm: bool = Field(False, description="norm of the sum of embeddings (BERT, BART)")
    embedding_scale: bool = Field(False, description="token embeddings times sqrt(hidden) (Transformer)")
    tied_head: bool = Field(True, description="the output projection is the token embedding")
    dropout: float = Field(0.0, ge=0, lt=1, description="after the embedding and each sublayer")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="on attention probabilities")
    ffn_dropout: float = Field(0.0, ge=0, lt=1, description="between the two matrices of the feed-forward layer (T5)")
    init: Literal["normal", "t5", "xavier"] = Field(
        "normal", description="of weights; t5 and xavier: their deviation follows from the width (init.py)"
    )
    init_std: float = Field(0.02, gt=0, description="standard deviation of initial weights (normal)")
    scale_residual_init: bool = Field(True, description="divide the std of residual projections by sqrt(2 * layers)")
    attention: Attention = Attention()

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> "Model":
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(
                f"model.hidden={self.hidden} is not a multiple of model.heads={self.heads}: set model.head_dim"
            )
        return self

    @model_validator(mode="after")
    def _family_has_these_parts(self) -> "Model":
        if self.family not in ENCODER_DECODERS:
            for key in ("encoder_layers", "target_length"):
                if getattr(self, key) is not None:
                    raise ValueError(f"model.{key} is for encoder-decoders: leave it out for the {self.family} family")
        if self.encoder_layers == 0 and self.family != "t5":
            raise ValueError("model.encoder_layers=0, a decoder alone, is a variant of the t5 family, or use gpt")
        if self.family != "gpt" and set(self.attention.pattern) != {"dense"}:
            raise ValueError(f"model.attention.pattern is for the gpt family: the {self.family} family is dense")
        if (self.segments or self.pooled_head) and self.family not in ENCODERS:
            raise ValueError(f"model.segments and model.pooled_head are BERT's: leave them out for {self.family}")
        if self.family == "gpt":
            plain = {
                "norm_type": "layer", "bias": True, "positions": "learned", "position_offset": 0,
                "embedding_norm": False, "embedding_scale": False, "init": "normal",
            }  # fmt: skip
            for key, value in plain.items():
                if getattr(self, key) != value:
                    raise ValueError(f"model.{key}={getattr(self, key)} is not in the gpt family: leave it out")
        return self

    @model_validator(mode="after")
    def _fields_do_something(self) -> "Model":
        if self.positions != "relative":
            _refuse_idle(self, "model", ("relative_buckets", "relative_distance"), "positions")
        elif self.relative_buckets % 4 or self.relative_distance <= self.relative_buckets // 2:
            raise ValueError(
                f"model.relative_buckets={self.relative_buckets} are to be a multiple of 4, and "
                f"model.relative_distance={self.relative_distance} more than half of them"
            )
        if self.positions != "learned":
            _refuse_idle(self, "model", ("position_offset",), "positions")
        if self.init != "normal":
            _refuse_idle(self, "model", ("init_std",), "init")
        if self.encoder_layers == 0:
            _refuse_idle(self, "model", ("target_length",), "encoder_layers")
        if self.segments == 1 and self.family != "bert":
            raise ValueError("model.segments=1 adds the same to every token: leave it out")
        return self

    @property
    def head_width(self) -> int:
        return self.head_dim or self.hidden // self.heads

    @property
    def ffn_width(self) -> int:
        return self.ffn or 4 * self.hidden

    @property
    def gated(self) -> bool:
        return self.activation == "gated_gelu"

    @property
    def stacks(self) -> tuple[int, int]:
        """(encoder, decoder) layers."""
        if self.family in ENCODERS:
            return self.layers, 0
        if self.family in ENCODER_DECODERS:
            return self.layers if self.encoder_layers is None else self.encoder_layers, self.layers
        return 0, self.layers

    @property
    def is_encoder_decoder(self) -> bool:
        return min(self.stacks) > 0

    @property
    def label_length(self) -> int:
        """Positions with a label."""
        if not self.is_encoder_decoder:
            return self.sequence_length
        assert self.target_length is not None, "a run's config has one"
        return self.target_length

    @property
    def padded_vocabulary(self) -> int:
        """Rows of the embedding: the vocabulary rounded up. The same for every layout."""
        assert self.vocabulary is not None, "the vocabulary is resolved before it is used"
        return -(-self.vocabulary // self.vocabulary_multiple) * self.vocabulary_multiple


class Objective(data.Objective):
    """What samples are, which the data pipeline makes, and how answers are judged."""

    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="part of each target's probability that all ids share alike (Transformer)"
    )

    @model_validator(mode="after")
    def _fields_do_something(self) -> "Objective":
        always = {"name", "label_smoothing"}
        _refuse_idle(self, "objective", type(self).model_fields.keys() - always - _READ[self.name])
        if not self.next_sentence:
            _refuse_idle(self, "objective", ("short_fraction",), "next_sentence")
        return self


# What each objective reads of its section.
_READ = {
    "causal": {"packing"},
    "masked": {"noise_density", "whole_words", "next_sentence", "short_fraction"},
    "span_corruption": {"noise_density", "mean_span", "sentinels"},
    "bert_style": {"noise_density"},
    "mass_style": {"noise_density"},
    "drop": {"noise_density"},
    "prefix_lm": set[str](),
    "deshuffling": set[str](),
    "denoising": {"noise_density", "mean_span", "noise"},
    "pairs": set[str](),
}


class Source(Section):
    path: str = Field(
        description="directory that `pretrain data build` wrote, or where a copy lies: s3://, gs://, https://"
    )
    name: str | None = Field(None, description="what phases and the ledger call it; absent: the path's last component")
    weight: float = Field(
        1.0, ge=0, allow_inf_nan=False, description="share of samples, relative to the other sources (0: see phases)"
    )
    max_epochs: float | None = Field(
        None, gt=0, description="a run that would read it more often is refused; absent: any number"
    )

    @property
    def called(self) -> str:
        return self.name or Path(self.path).name


class WeightPhase(Section):
    """Other weights, from some point of the run on."""

    tokens: int = Field(gt=0, description="trained tokens, after which the first whole batch has these weights")
    weights: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        description="weight of each source by its name; 0: it is not read"
    )


class Mixing(Section):
    """Weights of sources that follow from how many examples they have (T5's study, section 3.5.2)."""

    name: Literal["proportional", "temperature", "equal"]
    cap: int | None = Field(None, gt=0, description="examples that a source counts at most (not with equal)")
    temperature: float = Field(1.0, ge=1, description="rates are taken to the power of 1 / temperature (temperature)")

    @model_validator(mode="after")
    def _fields_do_something(self) -> "Mixing":
        if self.name == "equal" and self.cap is not None:
            raise ValueError("data.mixing.cap does nothing with data.mixing.name=equal: leave it out")
        if (self.name == "temperature") != (self.temperature != 1):
            raise ValueError("data.mixing.temperature goes with data.mixing.name=temperature, and is above 1")
        return self


class Data(Section):
    path: str | None = Field(None, description="one dataset; short for sources: [{path: ...}]")
    sources: list[Source] = Field([], description="datasets and their weights")
    mixing: Mixing | None = Field(None, description="instead of weights: rates by the sources' numbers of examples")
    phases: list[WeightPhase] = Field([], description="weights that change in mid-run, in order; each source goes on")
    verify: bool = Field(
        True,
        description="check every shard on this machine against its checksum before the first step (1 s per GB); "
        "what is fetched from elsewhere is always checked as it comes",
    )
    cache_dir: str | None = Field(
        None, description="keeps what is fetched of datasets elsewhere; absent: pretrain in the user's cache directory"
    )
    cache_bytes: int = Field(
        DEFAULT_BYTES, gt=0, description="what cache_dir may hold at most, for all ranks of a machine together"
    )
    workers: int = Field(1, ge=0, description="threads that prepare batches ahead of the step; 0: none")
    prefetch: int = Field(2, gt=0, description="batches prepared ahead by the workers")

    @model_validator(mode="after")
    def _one_way_to_name_sources(self) -> "Data":
        if self.path is not None and self.sources:
            raise ValueError("set data.path or data.sources, not both")
        if self.mixing is not None and len(self.sources) < 2:
            raise ValueError("data.mixing is between data.sources: give several, or leave it out")
        if self.mixing is not None and any(source.weight != 1 for source in self.sources):
            raise ValueError("data.mixing makes the weights of sources: leave out weight, or data.mixing")
        return self

    @model_validator(mode="after")
    def _each_source_has_a_name_of_its_own(self) -> "Data":
        names = [source.called for source in self.resolved_sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice and (self.phases or any(source.name is not None for source in self.sources)):
            raise ValueError(f"several data.sources are called {twice[0]}: set name, to another one for each")
        return self

    @model_validator(mode="after")
    def _weights_are_shares(self) -> "Data":
        sources = self.resolved_sources
        if self.phases and (len(sources) < 2 or self.mixing is not None):
            raise ValueError("data.phases changes the weights of several data.sources: give them, and no data.mixing")
        begins = [phase.tokens for phase in self.phases]
        if any(later <= earlier for earlier, later in pairwise(begins)):
            raise ValueError(f"data.phases begin at {begins} tokens: list them in order, no two at the same")
        names = {source.called for source in sources}
        for phase in self.phases:
            where = f"data.phases from {phase.tokens} tokens on"
            if unknown := sorted(phase.weights.keys() - names):
                raise ValueError(
                    f"{where} names {unknown[0]}, which is no source: known are {', '.join(sorted(names))}"
                )
            if missing := sorted(names - phase.weights.keys()):
                raise ValueError(f"{where} leaves out {missing[0]}: give it a weight, 0 if it is not to be read")
            if not any(phase.weights.values()):
                raise ValueError(f"{where} gives no source a weight above 0: raise one")
        if sources and not any(source.weight for source in sources):
            raise ValueError("no source has a weight above 0: raise one")
        for source in sources:
            if not source.weight and not any(phase.weights[source.called] for phase in self.phases):
                raise ValueError(
                    f"the source {source.called} has weight 0 throughout: leave it out, or name it in phases"
                )
        return self

    @property
    def resolved_sources(self) -> list[Source]:
        return [Source(path=self.path)] if self.path is not None else list(self.sources)


class Optimizer(Section):
    name: Literal["adamw", "adam", "lamb", "adafactor"] = Field(
        "adamw", description="update rule; adam is adamw with the decay added to the gradient (docs/optimizers.md)"
    )
    learning_rate: float = Field(gt=0, description="peak learning rate")
    beta1: float = Field(
        0.9, ge=0, lt=1, description="decay of the first moment; adafactor: by itself 0, which has none"
    )
    beta2: float = Field(0.95, ge=0, lt=1, description="decay of the second moment; adafactor's is 1 - step^-0.8")
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment; not of adafactor")
    weight_decay: float = Field(
        0.1, ge=0, description="decoupled but for adam; never on biases and norms; adafactor: by itself 0"
    )
    relative: bool = Field(
        True, description="adafactor: the learning rate is a part of each parameter's root mean square (at least 1e-3)"
    )
    clip_norm: float = Field(1.0, ge=0, description="largest global gradient norm; 0: no clipping")

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_adafactor(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("name") == "adafactor":
            return {"beta1": 0.0, "weight_decay": 0.0, **values}
        return values

    @model_validator(mode="after")
    def _fields_do_something(self) -> "Optimizer":
        _refuse_idle(self, "optimizer", ("beta2", "eps") if self.name == "adafactor" else ("relative",))
        return self


class LossScale(Section):
    """Of fp16 only: losses are multiplied by a factor so that gradients fit; a step whose gradient does not is left out
    and the factor halved."""

    start: float = Field(65536.0, gt=0, description="factor of the first step")
    growth_steps: int = Field(1000, gt=0, description="steps without overflow after which the factor doubles")
    minimum: float = Field(1.0, gt=0, description="an overflow at this factor is an error, as in other precisions")


class Schedule(Section):
    """In tokens or in steps, whichever the lengths are given in; in tokens if there is none."""

    name: Literal["cosine", "linear", "constant", "inverse_sqrt", "wsd"] = Field(
        "cosine", description="shape of the decay; wsd: the peak is kept, then a linear decay ends with training"
    )
    warmup: Literal["linear", "none"] = Field(
        "linear", description="none: inverse_sqrt is at its peak until warmup_steps (T5), not on the way to it"
    )
    warmup_tokens: int = Field(0, ge=0, description="tokens of linear warm-up from zero")
    warmup_steps: int = Field(0, ge=0, description="the same in steps")
    decay_tokens: int | None = Field(
        None,
        gt=0,
        description="tokens at which the decay ends, counted from the first; absent: end of training. "
        "wsd: tokens that it takes",
    )
    decay_steps: int | None = Field(None, gt=0, description="the same in steps")
    final_fraction: float = Field(0.1, ge=0, le=1, description="learning rate after the decay, as a part of the peak")

    @model_validator(mode="after")
    def _lengths_make_sense(self) -> "Schedule":
        in_tokens = bool(self.warmup_tokens or self.decay_tokens)
        if in_tokens and self.in_steps:
            raise ValueError("schedule is in tokens or in steps: set warmup_tokens and decay_tokens, or the other two")
        if self.name == "inverse_sqrt" and not self.warmup_length:
            raise ValueError("schedule.name=inverse_sqrt falls from where warm-up ends: set schedule.warmup_steps")
        if self.name == "wsd" and not self.decay_length:
            raise ValueError(
                "schedule.name=wsd needs the length of its decay: set schedule.decay_tokens or decay_steps"
            )
        if self.name in ("constant", "inverse_sqrt"):
            _refuse_idle(self, "schedule", ("decay_tokens", "decay_steps", "final_fraction"))
        if self.name != "inverse_sqrt":
            _refuse_idle(self, "schedule", ("warmup",))
        return self

    @property
    def in_steps(self) -> bool:
        return bool(self.warmup_steps or self.decay_steps)

    @property
    def warmup_length(self) -> int:
        """In the schedule's unit, as `decay_length`."""
        return self.warmup_steps or self.warmup_tokens

    @property
    def decay_length(self) -> int | None:
        return self.decay_steps or self.decay_tokens


class Parallel(Section):
    tensor: int = Field(1, gt=0, description="ranks that share each layer")
    context: int = Field(1, gt=0, description="ranks that share each sequence")
    sequence: bool = Field(False, description="also split norms and dropout along the sequence over the tensor ranks")
    pipeline: int = Field(1, gt=0, description="stages the layers are divided into")
    virtual: int = Field(1, gt=0, description="model chunks per stage (interleaved schedule)")
    zero: Literal[0, 1, 2, 3] = Field(
        1, description="what data ranks share: 0 nothing, 1 optimizer states, 2 and gradients, 3 and parameters"
    )
    zero_engine: Literal["megatron", "deepspeed"] = Field(
        "megatron",
        description="whose sharding: megatron-core's (0, 1) or DeepSpeed's (1, 2, 3); 0 is the same for both",
    )
    offload_optimizer: bool = Field(
        False, description="keep optimizer states in host memory and update there (deepspeed, zero 1 to 3)"
    )
    offload_parameters: bool = Field(
        False, description="keep parameters in host memory between uses (deepspeed, zero 3)"
    )
    hpz: int = Field(
        1,
        gt=0,
        description="neighbouring data ranks (with their tensor ranks on one machine) that keep a second copy of the "
        "weights between them, to gather from in the backward pass without the network; 1: none (deepspeed, zero 3: "
        "hierarchical partitioning of ZeRO++)",
    )
    overlap: bool | None = Field(
        None, description="exchange gradients during the backward pass; absent: on GPUs, where the layout gains by it"
    )
    bucket_parameters: int | None = Field(
        None,
        gt=0,
        description="parameters whose gradients are exchanged at once (megatron: where it overlaps); absent: a layer's",
    )
    recompute: Literal["none", "selective", "full"] = Field(
        "none", description="activations recomputed in backward: none, attention, whole layers"
    )

    @model_validator(mode="before")
    @classmethod
    def _no_nvme(cls, values: Any) -> Any:
        for key in ("offload_optimizer", "offload_parameters"):
            if isinstance(values, dict) and values.get(key) == "nvme":
                raise ValueError(
                    f"parallel.{key}=nvme: with DeepSpeed 0.19.8, training with states on NVMe departs from the same "
                    "training in memory (by 0.05 to 0.11 of the loss): use true, which is host memory"
                )
        return values

    @property
    def shards_by_deepspeed(self) -> bool:
        return self.zero_engine == "deepspeed" and self.zero > 0

    @property
    def model_ranks(self) -> int:
        """Ranks that work on the same rows together: fewer run no step."""
        return self.tensor * self.context * self.pipeline


class Evaluate(Section):
    every_steps: int = Field(0, ge=0, description="held-out loss every so many steps; 0: only at the end")
    sequences: int = Field(256, gt=0, description="held-out sequences scored each time, or all there are")


class Checkpoint(Section):
    every_steps: int = Field(0, ge=0, description="save every so many steps; 0: only when stopping and at the end")
    keep: int = Field(2, gt=0, description="newest checkpoints kept")
    in_flight: int = Field(
        1,
        ge=0,
        description="saves that may be being written while training goes on, each with a copy of a rank's part in host "
        "memory; 0: training waits for the disk",
    )


class Track(Section):
    mlflow: bool = Field(True, description="write to MLflow as well as to metrics.jsonl")
    uri: str | None = Field(None, description="tracking URI; absent: sqlite file mlflow.db beside run.dir")
    experiment: str = "pretrain"
    every_steps: int = Field(1, gt=0, description="steps between terminal lines and MLflow points")


class Health(Section):
    stop_on_nan: bool = Field(True, description="end the run when the loss or gradient norm is not finite")
    timeout_s: int = Field(600, gt=0, description="seconds a collective may take before the run is ended")


class RunConfig(Section):
    run: Run
    train: Train
    batch: BatchSize
    model: Model
    objective: Objective = Objective()
    data: Data = Data()
    optimizer: Optimizer
    schedule: Schedule = Schedule()
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    loss_scale: LossScale = LossScale()
    parallel: Parallel = Parallel()
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoint = Checkpoint()
    track: Track = Track()
    health: Health = Health()

    @model_validator(mode="after")
    def _targets_have_a_length(self) -> "RunConfig":
        model = self.model
        if not model.is_encoder_decoder or model.target_length is not None:
            return self
        length = target_length(self.objective, model.sequence_length)
        return self.model_copy(update={"model": model.model_copy(update={"target_length": length})})

    @model_validator(mode="after")
    def _objective_and_batch_suit_family(self) -> "RunConfig":
        family, name = self.model.family, self.objective.name
        if family == "gpt":
            fitting: tuple[str, ...] = ("causal",)
        elif family in ENCODERS:
            fitting = ("masked",)
        else:
            targets = ("span_corruption", "bert_style", "mass_style", "drop", "prefix_lm", "deshuffling", "denoising")
            fitting = (*targets, "pairs", *(() if self.model.is_encoder_decoder else ("causal",)))
        short = self.batch.short
        if short is not None:
            if self.model.is_encoder_decoder:
                raise ValueError("batch.short is for models of one sequence: leave it out for an encoder-decoder")
            length = self.batch.sequences * short.sequence_length
            if short.steps >= (self.train.steps or -(-(self.train.tokens or 0) // length)):
                raise ValueError(
                    f"training ends within batch.short.steps={short.steps}, so that no sequence would be longer: train "
                    "for more, or shorten batch.short"
                )
            if self.data.phases:
                raise ValueError(
                    "batch.short begins the data again with its longer sequences, so that sources can't go on where "
                    "they stood: leave out batch.short, or data.phases"
                )
            if short.sequence_length >= self.model.sequence_length:
                raise ValueError("batch.short.sequence_length is to be shorter than model.sequence_length")
        if name not in fitting:
            raise ValueError(f"objective.name={name} does not suit model.family={family}: use {' or '.join(fitting)}")
        if self.objective.packing == "best_fit" and family != "gpt":
            raise ValueError(f"objective.packing=best_fit is for the gpt family: leave it out for {family}")
        if self.objective.next_sentence and not (self.model.segments > 1 and self.model.pooled_head):
            raise ValueError(
                "objective.next_sentence makes samples of two segments and asks whether the second follows: set "
                "model.segments=2 and model.pooled_head=true"
            )
        return self

    @model_validator(mode="after")
    def _loss_scale_is_for_fp16(self) -> "RunConfig":
        if self.precision != "fp16" and self.loss_scale != LossScale():
            raise ValueError(f"loss_scale does nothing with precision={self.precision}: leave it out, or set fp16")
        return self
