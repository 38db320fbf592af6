"""A model's config -> its scorer."""

from data_pipeline.tokenizers.base import Tokenizer
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Engine
from pretrain.evaluate.scorers.backward import BackwardScorer
from pretrain.evaluate.scorers.base import Scorer
from pretrain.evaluate.scorers.causal import CausalScorer
from pretrain.evaluate.scorers.pseudo import PseudoScorer
from pretrain.evaluate.scorers.targets import TargetScorer


def make_scorer(config: RunConfig, engine: Engine, tokenizer: Tokenizer, tokens: int | None = None) -> Scorer:
    """`engine` runs the model of `config`. `tokens`: positions of rows that are scored at a time; None: what suits the
    device. Raises ConfigError for a layout that cannot answer."""
    if config.objective.predicts_next:
        kind = BackwardScorer if config.objective.backward else CausalScorer
        return kind(engine, tokenizer, config.model.context_length, tokens)
    return (TargetScorer if config.model.has_decoder else PseudoScorer)(config, engine, tokenizer, tokens)
