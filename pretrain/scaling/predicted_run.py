"""Config and plan of the run that a prediction is about, for `pretrain train` and `pretrain plan`."""

from dataclasses import dataclass
from typing import Any

from pretrain.config.load import validate
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.plan.goodput import Failures
from pretrain.plan.plan_report import Prices, figures
from pretrain.plan.planner import make_plan
from pretrain.scaling.ladder import LadderSpec, ladder
from pretrain.scaling.predict import Prediction


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """GPUs that the predicted run is planned on."""

    gpus: int
    hardware: str
    """name of a device, or path of a YAML file"""
    per_node: int | None = None
    """GPUs per node; None: as many as the hardware's file says"""
    stack: str = "unknown"
    """software stack by name, or path of a YAML file"""
    price_per_gpu_hour: float | None = None
    """None: what the hardware's file says"""


def predicted_run(base: RunConfig, prediction: Prediction, *, rule: str, gpus: int) -> RunConfig:
    """`base` at the predicted size and length, as a ladder's longest run of that size would be: shape, batch, warm-up
    and schedule by `rule`, and the predicted peak rate, or the rule's if there is none. The batch is a whole number of
    `gpus` sequences, so that as many devices can share it, in micro-batches of one. Raises ConfigError where `base` has
    no vocabulary, or no shape of it comes within 10% of the size."""
    if base.model.vocabulary is None:
        raise ConfigError(
            "a size has another shape with each vocabulary, and the config has none: set model.vocabulary"
        )
    tree = base.model_dump(mode="json")
    tree["batch"] |= {"sequences": gpus, "micro_sequences": gpus, "ramp": None, "short": None}
    spec = LadderSpec(
        sizes=(prediction.parameters,),
        ratios=(prediction.tokens / prediction.parameters,),
        seeds=(1,),
        rule=rule,
        runs_dir=str(base.run.dir),
    )
    (planned,) = ladder(validate(RunConfig, tree, "the base"), spec)
    tree = planned.config.model_dump(mode="json")
    tree["batch"]["micro_sequences"] = 1
    tree["checkpoint"] = base.checkpoint.model_dump(mode="json")
    if prediction.learning_rate is not None:
        tree["optimizer"]["learning_rate"] = float(f"{prediction.learning_rate:.4g}")
    return validate(RunConfig, tree, "the predicted run")


def plan_figures(config: RunConfig, cluster: Cluster) -> dict[str, Any]:
    """Figures of the fastest layout of a run, as `pretrain plan` gives them, with the names of `cluster`."""
    plan = make_plan(
        config,
        cluster.hardware,
        cluster.gpus,
        per_node=cluster.per_node,
        stack_name=cluster.stack,
        target="throughput",
        top=1,
        prices=Prices(cluster.price_per_gpu_hour, None),
        failures=Failures(),
    )
    return figures(plan, plan.result.options[0]) | {"hardware": cluster.hardware, "stack": cluster.stack}
