"""The ways of judging, by name."""

from collections.abc import Callable

from pretrain.evaluate.measures.base import ForTask, Measure
from pretrain.evaluate.measures.choice import ChoiceMeasure
from pretrain.evaluate.measures.perplexity import PerplexityMeasure
from pretrain.evaluate.measures.target import TargetMeasure
from pretrain.evaluate.measures.text import TextMeasure
from pretrain.evaluate.scorers.base import Scorer
from pretrain.evaluate.tasks.base import Judged

MEASURES: dict[Judged, Callable[[ForTask, Scorer], Measure]] = {
    "target": TargetMeasure,
    "choice": ChoiceMeasure,
    "text": TextMeasure,
    "perplexity": PerplexityMeasure,
}
