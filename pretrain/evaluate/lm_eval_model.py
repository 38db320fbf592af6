"""Our models in lm-eval's registry, under the name `pretrain`.

    import pretrain.evaluate.lm_eval_model
    lm_eval.simple_evaluate(model="pretrain", model_args="checkpoint=runs/book", tasks=["lambada_openai"])

lm-eval looks for no plugins, so the name is there once this module is imported. `pretrain lm-eval` is lm-eval's own
command after that.
"""

import os
import re
import sys
from pathlib import Path
from traceback import walk_tb
from typing import Any

from lm_eval._cli import HarnessCLI
from lm_eval.api.registry import register_model
from lm_eval.utils import setup_logging

from data_pipeline.tokenizers.load import load_tokenizer
from pretrain.checkpoint.directory import locate
from pretrain.checkpoint.state import check_predicts_tokens, check_reads_forward
from pretrain.config.patterns import function
from pretrain.errors import ConfigError
from pretrain.evaluate.harness import HarnessModel
from pretrain.evaluate.opening import build_scorer, open_checkpoint
from pretrain.run_dir.paths import TOKENIZER

_SETTINGS = "lm_eval.config.evaluate_config"  # which tells users of their mistakes as it raises errors

_NO_TASKS = "No tasks specified"

_DESCRIPTION = """\
EleutherAI's evaluation harness with the model `pretrain`, which loads a run or a checkpoint. The harness builds the
prompts and reports the scores; `pretrain eval` has tasks, few-shot examples and reports of its own."""
_EXAMPLES = """\
examples:
  pretrain lm-eval run --model pretrain --model_args checkpoint=runs/book --tasks hellaswag
  pretrain lm-eval run --model pretrain --model_args checkpoint=runs/book,batch_size=32 --tasks piqa --limit 100
  pretrain lm-eval ls tasks

exit status: 0 done, 1 failed, 2 bad usage or config
manual: https://github.com/EleutherAI/lm-evaluation-harness/blob/main/docs/interface.md"""


@register_model("pretrain")
class CheckpointModel(HarnessModel):
    """A checkpoint, or the newest valid one of a run, as lm-eval's `model_args` name it."""

    def __init__(
        self,
        checkpoint: str = "",
        batch_size: int | str = 16,
        max_batch_size: int | None = None,
        device: str | None = None,
        trust_code: bool = False,
        **overrides: Any,
    ) -> None:
        """`batch_size` rows are scored at a time; `trust_code` is other commands' `--trust-code`; `overrides` are keys
        of the config, such as `parallel.tensor`.
        lm-eval names a `device` also where nobody has: ours is the GPU if there is one. Raises ConfigError for what is
        no checkpoint, or makes no continuations."""
        if not str(batch_size).isdecimal() or max_batch_size is not None:
            raise ConfigError(f"batch_size={batch_size}: give the rows to score at a time, and no max_batch_size")
        if not checkpoint:
            known = ", ".join(overrides) or "nothing"
            raise ConfigError(f"--model_args name no checkpoint, but {known}: say --model_args checkpoint=RUN")
        if trust_code:
            function.trust_code()
        settings = [f"{key}={value}" for key, value in overrides.items()]
        one_rank = "WORLD_SIZE" not in os.environ
        config, path = open_checkpoint(locate(Path(checkpoint).expanduser()), settings, one_rank, model="all")
        check_predicts_tokens(config, Path(checkpoint))
        check_reads_forward(config, Path(checkpoint), "lm-eval asks for what follows a context")
        if not config.objective.predicts_next:
            raise ConfigError(
                f"{path}: lm-eval scores continuations, which a {config.model.family} model for "
                f"{config.objective.name} does not make"
            )
        engine = build_scorer(config, path)
        super().__init__(engine, load_tokenizer(path / TOKENIZER), config.model.context_length, int(batch_size))


def run_command(argv: list[str]) -> None:
    """lm-eval's own, which reads the process's arguments, and leaves with a status where it can't. Raises ConfigError
    for what its settings refuse, such as a task that there is not."""
    sys.argv = ["lm-eval", *argv]
    try:
        run_harness()
    except (ValueError, FileNotFoundError) as error:
        *_, (frame, _) = walk_tb(error.__traceback__)
        if frame.f_globals["__name__"] != _SETTINGS and not str(error).startswith(_NO_TASKS):
            raise
        raise ConfigError(f"lm-eval: {error}; see `pretrain lm-eval run --help`") from None


def run_harness() -> None:
    """Runs lm-eval's command line, whose usage, examples and errors name `pretrain lm-eval`, as users type it."""
    setup_logging()
    command_line = HarnessCLI()
    for parser in (command_line._parser, *command_line._subparsers.choices.values()):
        parser.prog, parser.usage, parser.epilog = map(_as_typed, (parser.prog, parser.usage, parser.epilog))
        for action in parser._actions:
            action.help = _as_typed(action.help)
    command_line._parser.description, command_line._parser.epilog = _DESCRIPTION, _EXAMPLES
    command_line.execute(command_line.parse_args())


def _as_typed(text: str | None) -> str | None:
    return text and re.sub(r"\blm-eval(?= |$)", "pretrain lm-eval", text)
