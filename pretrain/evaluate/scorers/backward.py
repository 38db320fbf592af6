"""Models that read texts from their end: a text's probability is that of its tokens, each before all after it.

Such a model does not say how probable a target is after its context. By Bayes' rule, of targets after one context the
one is most probable with which the text of both is, so choices are compared by the probability of all of it.
"""

from collections.abc import Sequence

from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.base import Decoding
from pretrain.evaluate.scorers.base import AnswerTokens, Pair
from pretrain.evaluate.scorers.causal import CausalScorer


class BackwardScorer(CausalScorer):
    """See `base.Scorer`. The target of a pair is the text of context and target in reverse order, after an end of
    text."""

    name = "log probability of the tokens of context and target together, from right to left"
    generates, rolls, conditional = False, True, False

    def pair(self, context: str, target: str) -> Pair:
        """See `base.Scorer`. A text with a begin of text has it at its end, as it is read."""
        return [self.tokenizer.end_of_text], self.tokenizer.opened(self.tokenizer.encode(context + target))[::-1]

    def texts(
        self, contexts: Sequence[Sequence[int]], longest: int, decoding: Decoding, stops: Sequence[str]
    ) -> list[AnswerTokens]:
        """See `base.Scorer`: no text after a context."""
        raise ConfigError("a model that reads from right to left makes no text after a context")
