"""`pretrain lm-eval --model pretrain --model_args checkpoint=RUN --tasks ...`: lm-eval's command, with our models."""

from pretrain.commands.local_ranks import under_launcher
from pretrain.errors import ConfigError
from pretrain.process.signals import unblock


def main(argv: list[str]) -> int:
    """Runs lm-eval's own command line, which leaves with a status of its own where it can't read `argv`."""
    unblock()
    if under_launcher():
        raise ConfigError(
            "lm-eval's command would run, print and write on every rank: leave the launcher out, or call "
            "lm_eval.simple_evaluate with pretrain.evaluate.lm_eval_model imported"
        )
    from pretrain.evaluate.lm_eval_model import run_command

    run_command(argv)
    return 0
