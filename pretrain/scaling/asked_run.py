"""Config of the run that a prediction is about, for `pretrain plan` and `pretrain train`."""

from pretrain.config.load import validate
from pretrain.config.run_config import RunConfig
from pretrain.scaling.ladder import LadderSpec, ladder


def asked_run(
    base: RunConfig, parameters: float, tokens: float, *, rate: float | None, rule: str, unit: int
) -> RunConfig:
    """`base` at this size and length, as a ladder's longest run of that size would be: shape, batch, warm-up and
    schedule by `rule`, and the peak rate too where `rate` is None. The batch is a whole number of `unit` sequences, so
    that as many devices can share it, in micro-batches of one. The vocabulary of `base` is known. Raises ConfigError
    where no shape of `base` comes within 10% of the size."""
    tree = base.model_dump(mode="json")
    tree["batch"] |= {"sequences": unit, "micro_sequences": unit, "ramp": None, "short": None}
    one = LadderSpec(
        sizes=(parameters,), ratios=(tokens / parameters,), seeds=(1,), rule=rule, runs_dir=str(base.run.dir)
    )
    (planned,) = ladder(validate(RunConfig, tree, "the base"), one)
    tree = planned.config.model_dump(mode="json")
    tree["batch"]["micro_sequences"] = 1
    tree["checkpoint"] = base.checkpoint.model_dump(mode="json")
    if rate is not None:
        tree["optimizer"]["learning_rate"] = float(f"{rate:.4g}")
    return validate(RunConfig, tree, "the run that was asked about")
