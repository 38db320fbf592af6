"""The ways of judging, by name."""

from collections.abc import Callable

from pretrain.evaluate.measures.base import ForTask, Measure
from pretrain.evaluate.measures.choice import ChoiceMeasure
from pretrain.evaluate.measures.perplexity import PerplexityMeasure
from pretrain.evaluate.measures.target import TargetMeasure
from pretrain.evaluate.measures.text import TextMeasure
from pretrain.evaluate.scorers.base import Scorer
from pretrain.evaluate.tasks.metric_names import OutputType

MEASURES: dict[OutputType, Callable[[ForTask, Scorer], Measure]] = {
    "loglikelihood": TargetMeasure,
    "multiple_choice": ChoiceMeasure,
    "generate_until": TextMeasure,
    "loglikelihood_rolling": PerplexityMeasure,
}
