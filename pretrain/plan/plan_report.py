"""Report of `pretrain plan`, as text and as JSON."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig
from pretrain.model_spec.flops import training_flops_per_token
from pretrain.model_spec.parameters import num_active_parameters, num_parameters
from pretrain.plan.device import Device
from pretrain.plan.estimate.constants import StackFactor
from pretrain.plan.goodput import Goodput
from pretrain.plan.search import SAFE_MEMORY_SHARE, Option, SearchResult
from pretrain.run_length.segments import Position, run_length

_GIB = 2**30
_DAY_S = 86_400


@dataclass(frozen=True)
class Prices:
    """Price and power of a GPU; what is None is left out of the report."""

    per_gpu_hour: float | None
    watts: float | None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that the report of a plan shows."""

    config: RunConfig
    device: Device
    hardware: str
    gpus: int
    per_node: int
    stack_name: str
    stack: StackFactor
    result: SearchResult
    goodput: Goodput
    advice: list[str]
    prices: Prices

    @cached_property
    def run_length(self) -> Position:
        return run_length(self.config)

    @cached_property
    def flops_per_token(self) -> float:
        """`training_flops_per_token`, the same for every option."""
        return training_flops_per_token(self.config.row_model)


_ALWAYS_SHOWN = ("tensor", "pipeline", "zero", "recompute")


def overrides(option: Option, config: RunConfig) -> str:
    """Overrides that make this option of `config`, on one line, of which a part cannot be copied by mistake: four keys
    of `parallel` always, others where a default does not do."""
    choice, layout = option.choice, option.choice.layout
    values: dict[str, Any] = {
        "tensor": layout.tensor,
        "context": layout.context,
        "expert": layout.expert,
        "expert_tensor": 1 if layout.unsplit_experts else None,
        "sequence": layout.sequence,
        "pipeline": layout.pipeline,
        "virtual": layout.virtual,
        "zero": layout.zero,
        "zero_engine": "deepspeed" if layout.shards_by_deepspeed else "megatron",
        "recompute": choice.recompute,
    }
    fields, own = type(config.parallel).model_fields, config.parallel
    words = [
        f"parallel.{name}={'null' if value is None else str(value).lower()}"
        for name, value in values.items()
        if name in _ALWAYS_SHOWN or not value == fields[name].default == getattr(own, name)
    ]
    return " ".join([f"batch.micro_sequences={choice.micro_sequences}", *words])


def figures(plan: Plan, option: Option) -> dict[str, Any]:
    """Figures of one option: plain values, with units in their names."""
    config, layout = plan.config, option.choice.layout
    model = config.row_model
    tokens = config.batch.sequences * model.sequence_length
    flops = plan.flops_per_token * tokens
    peak = plan.device.peak(config.precision) or float("nan")
    steps, run_tokens = plan.run_length
    low, high = option.seconds * plan.stack.low, option.seconds * plan.stack.high
    # Smaller batches at first take as long for each token, as far as is known here.
    run_s = run_tokens / tokens * option.seconds / plan.goodput.share
    gpu_hours = run_s * layout.world / 3600
    price = plan.prices.per_gpu_hour
    return {
        "layout": str(layout),
        "gpus": layout.world,
        "micro_sequences": option.choice.micro_sequences,
        "recompute": option.choice.recompute,
        "step_s": option.seconds,
        "step_s_between": [low, high],
        "tokens_per_s": tokens / option.seconds,
        "mfu": flops / option.seconds / (peak * layout.world),
        "flops_per_step": flops,
        "steps": steps,
        "days": run_s / _DAY_S,
        "gpu_hours": gpu_hours,
        "cost": None if price is None else gpu_hours * price,
        "energy_kwh": None if plan.prices.watts is None else gpu_hours * plan.prices.watts / 1000,
        "bottleneck": option.bottleneck,
        "held_bytes": option.held_bytes,
        "held": option.held,
        "seconds": option.parts,
        "overrides": overrides(option, config),
    }


def as_json(plan: Plan) -> dict[str, Any]:
    """Full report for programs."""
    return {
        "model_parameters": num_parameters(plan.config.model, padded=False),
        "model_active_parameters": num_active_parameters(plan.config.model),
        "hardware": plan.hardware,
        "gpus": plan.gpus,
        "gpus_per_node": plan.per_node,
        "memory_bytes": plan.device.memory_gib * _GIB,
        "stack": plan.stack_name,
        "layouts_judged": plan.result.judged,
        "options": [figures(plan, option) for option in plan.result.options],
        "with_room": None if plan.result.with_headroom is None else figures(plan, plan.result.with_headroom),
        "goodput": vars(plan.goodput),
        "advice": plan.advice,
    }


def lines(plan: Plan, explain: bool) -> list[str]:
    """Report for people: a table, the best option in full, and what would be better."""
    config, best = plan.config, figures(plan, plan.result.options[0])
    out = [
        f"{_parameters(config.model)}, {config.batch.sequences:,} sequences of "
        f"{config.model.sequence_length:,} tokens a step, on {plan.gpus:,} x {plan.hardware}: "
        f"{plan.result.judged:,} layouts judged",
        "",
        f"{'layout':<34}{'micro':>6}{'recompute':>11}{'step s':>9}{'tokens/s':>13}{'MFU':>7}{'GiB':>7}  bottleneck",
    ]
    for option in plan.result.options:
        row = figures(plan, option)
        out.append(
            f"{row['layout']:<34}{row['micro_sequences']:>6}{row['recompute']:>11}{row['step_s']:>9.3g}"
            f"{row['tokens_per_s']:>13,.0f}{row['mfu']:>7.1%}{row['held_bytes'] / _GIB:>7.1f}  {row['bottleneck']}"
        )
    low, high = best["step_s_between"]
    money = "" if best["cost"] is None else f", at {plan.prices.per_gpu_hour:g} an hour {best['cost']:,.0f}"
    energy = "" if best["energy_kwh"] is None else f", {best['energy_kwh']:,.0f} kWh"
    out += [
        "",
        f"the first: {best['step_s']:.3g} s a step (8 of 10 measured steps of such software lie within {low:.3g} to "
        f"{high:.3g}), {best['steps']:,} steps in {best['days']:,.1f} days, {best['gpu_hours']:,.0f} GPU-hours"
        f"{money}{energy}",
    ]
    if config.model.experts is not None:
        out.append("no step of a mixture of experts was fitted: the interval is of dense models")
    if (ranks := plan.result.options[0].choice.layout.expert) > 1:
        out.append(
            f"tokens are taken to be spread evenly over the {ranks} ranks that share experts: at worst one of them "
            f"holds the rows of all, {ranks} times as many"
        )
    out += _tightness(plan)
    out.append(
        f"machines fail {plan.goodput.failures_per_day:.2g} times a day: checkpoint.every_steps="
        f"{plan.goodput.every_steps} keeps {plan.goodput.share:.1%} of the time for steps that count"
    )
    out += [f"better: {sentence}" for sentence in plan.advice]
    if explain:
        out += ["", f"{_parameters(config.model)}: {plan.flops_per_token / 1e9:,.4g} GFLOP of training for each token"]
        out += ["", "a step, in seconds:", *_shares(best["seconds"], 1.0, "s")]
        out += ["", "the fullest rank, in GiB:", *_shares(best["held"], _GIB, "GiB")]
    advised = plan.result.with_headroom or plan.result.options[0]
    return [*out, "", _advised_line(plan, advised), overrides(advised, config)]


def _parameters(model: Model) -> str:
    every, active = num_parameters(model, padded=False), num_active_parameters(model)
    return f"{every / 1e9:.2f}B parameters" + (f" ({active / 1e9:.2f}B active)" if active < every else "")


def _advised_line(plan: Plan, advised: Option) -> str:
    """Line about the option that the overrides below it select."""
    first, share = plan.result.options[0], advised.held_bytes / (plan.device.memory_gib * _GIB)
    if advised is first:
        return f"the first, as overrides ({share:.0%} of a device):"
    slower = advised.seconds / first.seconds - 1
    return (
        f"with a tenth free: {advised.choice.layout}, micro {advised.choice.micro_sequences}, recompute "
        f"{advised.choice.recompute}, {advised.seconds:.3g} s ({slower:.1%} more), {share:.0%} of a device, as "
        "overrides:"
    )


def _tightness(plan: Plan) -> list[str]:
    """Warning where the first option may turn out not to fit."""
    limit, best = plan.device.memory_gib * _GIB, plan.result.options[0]
    share = f"{best.held_bytes / limit:.0%} of a device"
    if best.held_bytes > limit:
        return [f"it needs {share}: it does not fit"]
    if best.held_bytes <= SAFE_MEMORY_SHARE * limit:
        return []
    warning = f"it fills {share}, and may not fit: one in eight estimates is 10% off or more"
    alone = plan.result.judged > 1 and plan.result.with_headroom is None
    return [warning + ("; no layout leaves a tenth free" if alone else "")]


def _shares(parts: dict[str, float], unit: float, name: str) -> list[str]:
    total = sum(parts.values())
    return [
        f"  {key:<14}{value / unit:>10.4g} {name:<4}{value / total:>7.1%}" for key, value in parts.items() if value > 0
    ]
