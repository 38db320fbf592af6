"""The planner: the plan that `pretrain plan` prints."""

from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import plan_layout
from pretrain.plan.advice import advice
from pretrain.plan.device import Device, find_device
from pretrain.plan.estimate.builder import LayoutChoice
from pretrain.plan.estimate.constants import StackFactor, find_stack
from pretrain.plan.goodput import Failures, Goodput, best_goodput
from pretrain.plan.plan_report import Plan, Prices
from pretrain.plan.planned import check_planned
from pretrain.plan.search import SearchResult, Target, search, too_large

_ASSUMED_VOCABULARY = 50_257
_MOST_GPUS = 1_000_000
_MOST_LAYERS = 1024
"""Most layers in total: the deepest published models have 1,000 (Wang et al. 2022, DeepNet, arXiv 2203.00555)"""
_LEAST_SHARE = 1e-3
"""Least share of the time spent on steps that count; below it no plan is made."""


def make_plan(
    config: RunConfig,
    hardware: str,
    gpus: int,
    *,
    per_node: int | None,
    stack_name: str,
    target: Target,
    top: int,
    prices: Prices,
    failures: Failures,
    as_is: bool = False,
) -> Plan:
    """Plans a run of `config` on `gpus` devices, `per_node` to a node (default: as many as the hardware's file says).
    `as_is`: judge the config's own layout only. Raises ConfigError for unknown names, numbers that no layout suits, and
    models that are too large or not planned."""
    check_planned(config)
    check_layers(config.model)
    if gpus > _MOST_GPUS:
        raise ConfigError(f"--gpus {gpus:,}: plans are made for up to {_MOST_GPUS:,} GPUs")
    config = with_vocabulary(config)
    device, stack = find_device(hardware), find_stack(stack_name)
    per_node = _devices_per_node(device, gpus, per_node)
    configured = (
        LayoutChoice(plan_layout(config, gpus), config.batch.micro_sequences, config.parallel.recompute)
        if as_is
        else None
    )
    result = search(config, device, gpus, per_node=per_node, stack=stack, target=target, top=top, only=configured)
    if target == "cost" and not as_is:
        gpus, result = _cheapest(config, device, gpus=gpus, per_node=per_node, stack=stack, result=result, top=top)
    if not result.options:
        raise ConfigError(too_large(config, device, gpus, per_node, result))
    per_node, best = min(per_node, gpus), result.options[0]
    sentences = (
        advice(config, device, gpus, per_node=per_node, stack=stack, best=best)
        if target == "throughput" and not as_is
        else []
    )
    return Plan(
        config=config,
        device=device,
        hardware=hardware,
        gpus=gpus,
        per_node=per_node,
        stack_name=stack_name,
        stack=stack,
        result=result,
        goodput=_goodput(best.seconds, gpus, failures),
        advice=sentences,
        prices=_with_device_prices(prices, device),
    )


def _devices_per_node(device: Device, gpus: int, per_node: int | None) -> int:
    """Devices per node. Raises ConfigError if they don't divide `gpus`."""
    per_node = min(per_node or device.devices, gpus)
    if gpus % per_node:
        raise ConfigError(
            f"--gpus {gpus} are no whole number of machines with {per_node} each: use {gpus // per_node * per_node}, "
            "or say --gpus-per-node"
        )
    return per_node


def _with_device_prices(prices: Prices, device: Device) -> Prices:
    """Prices, with those of the hardware's file for what is None."""
    return Prices(
        device.price_per_hour if prices.per_gpu_hour is None else prices.per_gpu_hour,
        device.watts if prices.watts is None else prices.watts,
    )


def _goodput(step_s: float, gpus: int, failures: Failures) -> Goodput:
    """Goodput of steps that take `step_s` seconds. Raises ConfigError if hardly any step counts."""
    goodput = best_goodput(step_s, gpus, failures)
    if goodput.share < _LEAST_SHARE:
        raise ConfigError(
            f"with {goodput.failures_per_day:.3g} failures a day, steps of {step_s:.3g} s, "
            f"checkpoints that take {failures.save_s:g} s and "
            f"restarts that take {failures.restart_s:g} s, less than {_LEAST_SHARE:.1%} of the time is spent on steps "
            "that count: lower --failures-per-gpu-hour, --save-seconds or --restart-seconds, or use fewer GPUs"
        )
    return goodput


def check_layers(model: Model) -> None:
    """Raises ConfigError for more layers than can be judged in seconds."""
    layers = sum(model.stacks)
    if layers > _MOST_LAYERS:
        raise ConfigError(f"a model of {layers:,} layers: plans are made for up to {_MOST_LAYERS:,}: set model.layers")


def with_vocabulary(config: RunConfig) -> RunConfig:
    """Config with a vocabulary: without one it would use that of its data, which may not exist yet, so that of its
    teacher or GPT-2's is assumed."""
    config = _with_source_vocabulary(config)
    if config.model.vocabulary is not None:
        return config
    teacher = config.distillation.model
    vocabulary = _ASSUMED_VOCABULARY if teacher is None else teacher.vocabulary
    known = config.model.model_copy(update={"vocabulary": vocabulary})
    return config.model_copy(update={"model": known})


def _with_source_vocabulary(config: RunConfig) -> RunConfig:
    source = config.model.front_encoder
    if source is None or source.vocabulary is not None:
        return config
    return config.model_copy(update={"model": config.model.with_source_vocabulary(_ASSUMED_VOCABULARY)})


def check_one_model(config: RunConfig) -> None:
    """Raises ConfigError for a run with a teacher or a generator, of which a scaling law would count one model, or with
    a source encoder, which would not scale with the model."""
    if (key := config.model.front_encoder_key) is not None:
        raise ConfigError(
            f"model.{key}: a scaling law is of models that grow as a whole, and this one has an encoder of its own "
            "beside what is pretrained: leave it out"
        )
    if config.distillation.teacher is not None or config.generator is not None:
        name = "generator" if config.generator is not None else "distillation.teacher"
        raise ConfigError(
            f"{name}: a scaling law counts one model, and this run computes two: leave it out to scale the model that "
            "is trained"
        )


def _cheapest(
    config: RunConfig, device: Device, *, gpus: int, per_node: int, stack: StackFactor, result: SearchResult, top: int
) -> tuple[int, SearchResult]:
    """Halves the number of devices for as long as a step then takes fewer GPU-seconds."""
    while result.options and gpus % 2 == 0:
        half = gpus // 2
        try:
            fewer = search(config, device, half, per_node=min(per_node, half), stack=stack, target="cost", top=top)
        except ConfigError:
            break
        if not fewer.options or 2 * result.options[0].seconds <= fewer.options[0].seconds:
            break
        gpus, result = half, fewer
    return gpus, result
