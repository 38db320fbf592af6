"""Record of a checkpoint: what it holds besides tensors, small, as JSON beside them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from data_pipeline.batch import Cursor
from data_pipeline.common.problems import first_problem
from data_pipeline.config import MAX_INTEGER
from data_pipeline.errors import DataError
from pretrain.checkpoint.files import open_plain
from pretrain.checkpoint.one_model import ModelOfRun, one_model
from pretrain.config.change import CHANGEABLE
from pretrain.config.distillation import Distillation
from pretrain.config.load import validate
from pretrain.config.patterns.function import recorded_config
from pretrain.config.run_config import RunConfig
from pretrain.config.start import without_mtp
from pretrain.errors import ConfigError, RunError
from pretrain.observe.spikes import Recent
from pretrain.run_dir.paths import RECORD
from pretrain.run_length.ramp import tokens_of
from pretrain.run_length.schedule import settled_until
from pretrain.run_length.segments import run_length

_LARGEST_RECORD_BYTES = 16 << 20
Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Scale = Annotated[float, Field(gt=0, allow_inf_nan=False)]

# A run is the same run only if these agree with its checkpoint. Layout, micro-batch, logging and the like may change.
_DEFINING = ("model", "objective", "generator", "finetune", "optimizer", "schedule", "precision")


@dataclass(frozen=True, kw_only=True)
class Record:
    """Progress of a run after `step` optimizer steps. Random state is a function of (seed, step), the learning rate
    of step or tokens, and batch size of tokens, so nothing else needs saving."""

    step: Count
    updates: Count
    """steps that changed the weights: all but the skipped ones"""
    tokens: Count
    cursor: dict[str, Any]
    """the data's own record (data_pipeline.batch.Cursor)"""
    config: dict[str, Any]
    """the resolved config"""
    layout: str
    """for information: a checkpoint is read by any layout"""
    versions: dict[str, str]
    loss_scale: tuple[Scale, Count] | None = None
    """fp16 only: the loss scale, and the steps since it last changed"""
    recent: Recent | None = None
    """recent values that spike detection compares the next step with; None: none were recorded"""

    def encode(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode() + b"\n"

    @classmethod
    def read(cls, path: Path) -> "Record":
        """Raises RunError for a file that is none, or whose numbers no run can have come to. Nothing of the checkpoint
        need be verified yet."""
        try:
            with open_plain(path) as file:
                content = file.read(_LARGEST_RECORD_BYTES + 1)
            if len(content) > _LARGEST_RECORD_BYTES:
                raise RunError(f"{path} is too large for a checkpoint's record")
            record = _RECORD.validate_json(content, strict=True)
            Cursor.from_dict(record.cursor)
        except OSError as error:
            raise RunError(f"{path} cannot be read ({error.strerror})") from None
        except ValidationError as error:
            raise RunError(f"{path} is not a checkpoint's record ({first_problem(error)})") from None
        except DataError as error:
            raise RunError(f"{path} is not a checkpoint's record: {error}") from None
        if record.updates > record.step:
            raise RunError(f"{path} counts {record.updates:,} updates in {record.step:,} steps: it has been changed")
        return record


_RECORD = TypeAdapter(Record)


SCORING_PARALLEL: dict[str, Any] = {
    "virtual": 1,
    "sequence": False,
    "context": 1,
    "expert": 1,
    "expert_tensor": None,
    "recompute": "none",
}
"""`parallel.*` of an engine that only scores and generates, which change no number"""
SCORING_OVERRIDES = [f"parallel.{key}={json.dumps(value)}" for key, value in SCORING_PARALLEL.items()]
"""`SCORING_PARALLEL` as overrides of a config"""


def scoring_config(
    checkpoint: Path, overrides: list[str], one_rank: bool, model: ModelOfRun | None = None
) -> RunConfig:
    """The config a checkpoint was trained with, for scoring: without modules for further tokens, which training alone
    reads, and without interleaving, and sequence, context and expert parallelism, which change no number; on a layout
    of one rank if `one_rank`; then changed by `overrides`. `model`: of a run of two models, those to score
    (`one_model`)."""
    tree = Record.read(checkpoint / RECORD).config
    tree.pop("loss_scale", None)  # of training, and refused where `overrides` choose another precision
    tree |= {key: without_mtp(value) for key, value in tree.items() if key == "model"}
    parallel = tree.get("parallel", {})
    if isinstance(parallel, dict):  # or `validate` says what is wrong with it
        tree["parallel"] = {**parallel, **SCORING_PARALLEL, **({"tensor": 1, "pipeline": 1} if one_rank else {})}
    with recorded_config():
        config = validate(RunConfig, tree, str(checkpoint / RECORD), overrides)
    return one_model(config, model, checkpoint)


def expected_config(
    candidates: list[Path], overrides: list[str], one_rank: bool, model: ModelOfRun | None = None
) -> RunConfig:
    """The `scoring_config` of the first candidate that has one. Which of them is valid is known only once the ranks
    have read them; how many ranks there should be has to be known before. Raises the error of the first if none has."""
    errors: list[ConfigError | RunError] = []
    for checkpoint in candidates:
        try:
            return scoring_config(checkpoint, overrides, one_rank, model)
        except (ConfigError, RunError) as error:
            errors.append(error)
    raise errors[0]


def check_predicts_tokens(config: RunConfig, run: Path) -> None:
    """Raises ConfigError for a model without a language-model head: a fine-tuned one with a task head, a
    discriminator, and one that predicts at places that its rows name."""
    if config.model.picks_labels:
        raise ConfigError(
            f"{run} predicts at places that its rows name, where these are masked, which no task asks for: score "
            f"it with `pretrain eval {run} --tasks heldout --out DIR`, or fine-tune it"
        )
    if config.objective.loss == "replaced_tokens":
        raise ConfigError(
            f"the discriminator of {run} tells whether a token was replaced, and predicts none: choose the generator, "
            "which fills masks (--model generator of `pretrain generate` and `pretrain eval`)"
        )
    if config.model.task_head is not None:
        raise ConfigError(
            f"{run} was fine-tuned for {config.objective.name}, and its model answers rows and predicts no tokens: "
            f"score it with `pretrain eval {run} --tasks heldout --out DIR`"
        )


def check_reads_forward(config: RunConfig, run: Path, what: str) -> None:
    """Raises ConfigError for a model that reads texts from their end, where `what` reads them from their beginning."""
    if config.objective.backward:
        raise ConfigError(
            f"the model of {run} reads texts from right to left (objective.direction=backward), and {what}: score it "
            f"with `pretrain eval`, or write to the left of a text with `pretrain generate {run} --prompt TEXT`"
        )


def check_reads_own_vocabulary(config: RunConfig, run: Path) -> None:
    """Raises ConfigError for a model whose encoder reads another vocabulary than its decoder writes, where one text is
    for both."""
    if (key := config.model.front_encoder_key) is not None:
        raise ConfigError(
            f"the encoder of {run} reads texts in the vocabulary of model.{key} alone: score it with "
            f"`pretrain eval {run} --tasks heldout --out DIR`, or write targets with `pretrain translate`"
        )


def differences(then: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Differences between two resolved configs that make them other runs: the keys that differ, with both values.
    Layout, micro-batch, logging and the like may differ in one run."""
    scaling = [("loss_scale",)] if now.get("precision") == "fp16" else []
    keys = (
        scaling
        + [(section,) for section in _DEFINING]
        + [("run", key) for key in ("seed", "changes", "skipped")]
        + [("batch", key) for key in ("sequences", "ramp", "short")]
        + [("distillation", key) for key in Distillation.model_fields if key != "teacher"]  # which may have moved
    )
    return [
        difference for key in keys for difference in _differences(".".join(key), *(_at(x, key) for x in (then, now)))
    ]


def check_same_run(record: Record, config: RunConfig) -> None:
    """Raises ConfigError if `config`, with its changes (`change.settle`), would not continue the run of `record`,
    naming the first key that differs, and RunError if its counts don't go together."""
    before = config_of(record)
    samples = record.cursor.get("samples")
    if samples is not None and tokens_of(before, samples) != record.tokens:
        raise RunError(
            f"the checkpoint's {RECORD} counts {record.tokens:,} tokens in {samples:,} samples, which this run's "
            "lengths do not make: restore it from a copy, or resume from an older checkpoint"
        )
    then, now = before.model_dump(mode="json"), config.model_dump(mode="json")
    then["run"] |= {key: now["run"][key] for key in ("changes", "skipped")}
    if "moments" in then["optimizer"] and "moments" in now["optimizer"]:  # loading rounds the state, or widens it
        then["optimizer"]["moments"] = now["optimizer"]["moments"]
    for key, was, is_now in differences(then, now):
        can = ", change it from here on (run.change)" if key.startswith(CHANGEABLE) else ""
        raise ConfigError(
            f"this run was started with {key}={was}, and the config now says {is_now}: "
            f"set it back{can}, or use another run.dir for a new run"
        )
    if then["train"] != now["train"] and config.run.changes:
        raise ConfigError(
            f"train was {then['train']} and is now {now['train']}, and the settings of this run were changed "
            "while it ran: set it back, or change the length from here on (run.change)"
        )
    if then["train"] != now["train"] and _depends_on_length(record, before, config):
        raise ConfigError(
            f"train was {then['train']} and is now {now['train']}, and the learning rate of steps already made "
            "depends on it, as schedule's decay ends with training: keep the length, change it from here on "
            "(run.change), or start a new run (with schedule.decay_tokens or decay_steps set; wsd can be made longer "
            "until its decay begins)"
        )


def config_of(record: Record) -> RunConfig:
    """The config in a record. Raises ConfigError for a config that this version cannot read."""
    try:
        with recorded_config():
            return validate(RunConfig, record.config, f"the config in the checkpoint's {RECORD}")
    except ConfigError as error:
        raise ConfigError(
            f"this run cannot resume, because this version has other settings: {error}. Finish it with the "
            "version that started it, or start a new run with its weights (run.start_from, another run.dir)"
        ) from None


def _depends_on_length(record: Record, before: RunConfig, now: RunConfig) -> bool:
    """Whether the learning rates up to `record` would have been others with another end of training: the one it had
    before, or has now."""
    at = record.step if now.schedule.in_steps else record.tokens
    return at > min(settled_until(config, run_length(config)) for config in (before, now))


def _at(tree: dict[str, Any], key: tuple[str, ...]) -> Any:
    for name in key:
        tree = tree.get(name, {}) if isinstance(tree, dict) else {}
    return tree


def _differences(key: str, then: Any, now: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(then, dict) and isinstance(now, dict):
        return [difference for name in now for difference in _differences(f"{key}.{name}", then.get(name), now[name])]
    return [] if then == now else [(key, then, now)]
