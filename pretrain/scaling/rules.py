"""Learning rate, batch and warm-up of a model of some size, by rules that others published. No torch.

| Rule | Learning rate | Batch, tokens | Warm-up, tokens |
|---|---|---|---|
| `olmo` | 0.0047 (N / 108M)^(-1/3) / 2 | 327,680 (N / 108M)^(2/3) | N |
| `gpt3` | its table 2.1, between sizes and beyond them as a power of N | the same | 375e6 |
| `constant` | that of the base | as `olmo` | as `olmo` |
| `mup` | that of the base, of models with `model.mup` tuned at the base's width | as `olmo` | as `olmo` |
| `width` | that of the base x base width / width | that of the base | that of the base |

`olmo` is OLMo-core's ladder, after Porian et al. 2024, arXiv 2406.19146. `gpt3` is Brown et al. 2020, arXiv 2005.14165.
`mup` is Yang et al. 2022, arXiv 2203.03466. `width` is what it says of Adam on matrices between hidden layers, here for
all parameters: simpler than muP, which keeps embeddings at one rate. `constant` is for models as small as those
of the sweep in docs/scale.md, of 32 to 56 channels, for which `olmo` is too high.
"""

import math
from dataclasses import dataclass

import numpy as np

from pretrain.config.load import validate
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError

RULES = ("olmo", "gpt3", "constant", "mup", "width")
_OF_ONE_RATE = ("constant", "mup")
"""rules that leave learning rates alone, as `model.mup` wants them"""
_OLMO_PARAMETERS, _OLMO_RATE, _OLMO_BATCH = 108e6, 0.0047, 327_680
_GPT3_WARMUP = 375_000_000
# Table 2.1: parameters, learning rate, tokens of a batch.
_GPT3 = (
    (125e6, 6.0e-4, 0.5e6), (350e6, 3.0e-4, 0.5e6), (760e6, 2.5e-4, 0.5e6), (1.3e9, 2.0e-4, 1e6),
    (2.7e9, 1.6e-4, 1e6), (6.7e9, 1.2e-4, 2e6), (13e9, 1.0e-4, 2e6), (175e9, 0.6e-4, 3.2e6),
)  # fmt: skip
_LONGEST_WARMUP = 0.1  # of the shortest run: [ours]


@dataclass(frozen=True)
class Settings:
    """Settings of a model of one size."""

    learning_rate: float
    batch_tokens: float
    warmup_tokens: float


def settings(rule: str, parameters: float, width: int, base: RunConfig) -> Settings:
    """Settings by one of RULES. `width`: width of the model. `base`: config that the ladder is made from."""
    match rule:
        case "olmo" | "constant" | "mup":
            batch_tokens = _OLMO_BATCH * (parameters / _OLMO_PARAMETERS) ** (2 / 3)
            rate = olmo_rate(parameters) if rule == "olmo" else base.optimizer.learning_rate
            return Settings(rate, batch_tokens, parameters)
        case "gpt3":
            return Settings(gpt3_rate(parameters), _gpt3(parameters, 2), _GPT3_WARMUP)
        case _:
            batch = base.batch.sequences * base.model.sequence_length
            warmup = base.schedule.warmup_length * (batch if base.schedule.in_steps else 1)
            rate = base.optimizer.learning_rate * base.model.hidden / width
            return Settings(rate, batch, warmup)


def with_mup(rule: str, base: RunConfig) -> RunConfig:
    """The base, which under `mup` is tuned at its own width unless it says another. Raises ConfigError for a base with
    `model.mup` and a rule that lowers rates with the size too."""
    if base.model.mup is not None and rule not in _OF_ONE_RATE:
        raise ConfigError(
            f"model.mup makes one learning rate suit all widths, and --rule {rule} gives each size another: use "
            "--rule mup, or leave out model.mup"
        )
    if base.model.mup is not None or rule != "mup":
        return base
    tree = base.model_dump(mode="json")
    tree["model"]["mup"] = {"base_width": base.model.hidden}
    return validate(RunConfig, tree, "the ladder")


def olmo_rate(parameters: float) -> float:
    return float(_OLMO_RATE * (parameters / _OLMO_PARAMETERS) ** (-1 / 3) / 2)


def gpt3_rate(parameters: float) -> float:
    return _gpt3(parameters, 1)


def sequences(batch_tokens: float, length: int, micro: int) -> tuple[int, int]:
    """(of a batch, of a micro-batch): the nearest whole number of micro-batches; one smaller one where a batch is less
    than `micro` sequences."""
    nearest = max(1, round(batch_tokens / length))
    return (nearest, nearest) if nearest < micro else (round(nearest / micro) * micro, micro)


def warmup_steps(warmup_tokens: float, batch_tokens: int, shortest_steps: int) -> int:
    """Steps of `warmup_tokens`: no more than a tenth of the shortest run, at least one."""
    return max(1, min(round(warmup_tokens / batch_tokens), int(_LONGEST_WARMUP * shortest_steps)))


def _gpt3(parameters: float, column: int) -> float:
    """Value from the table: a straight line between the logarithms of neighbours; outside, the power of N nearest to
    all."""
    sizes, values = (np.log([row[number] for row in _GPT3]) for number in (0, column))
    at = math.log(parameters)
    if sizes[0] <= at <= sizes[-1]:
        return math.exp(float(np.interp(at, sizes, values)))
    edge = 0 if at < sizes[0] else -1
    slope = float(np.polyfit(sizes, values, 1)[0])
    return math.exp(float(values[edge]) + slope * (at - float(sizes[edge])))
