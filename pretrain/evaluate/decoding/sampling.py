"""Texts token after token, all requests together: greedy or drawn.

What is drawn is a function of (seed, request, number of the text, position) and of the model's distribution, so it
does not depend on which requests are decoded together, nor, up to the model's own rounding, on the layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pretrain.engine.base import DecodeEngine
from pretrain.evaluate.decoding.base import DecodeRequest, Ended, Generated, Sampling, Stops, Watch
from pretrain.evaluate.decoding.choice import choose


@dataclass
class _Text:
    """An unfinished text."""

    request: DecodeRequest
    stream: str
    parent: int
    """its number among hypotheses before its last token"""
    tokens: list[int] = field(default_factory=list)
    log_probability: float = 0.0
    ended: Ended = "interrupted"

    @property
    def newest(self) -> int:
        return self.tokens[-1] if self.tokens else self.request.start

    def generated(self, stops: Stops) -> Generated:
        closed = self.ended == "stop" and self.tokens[-1] in stops.ids
        return Generated(self.tokens[:-1] if closed else self.tokens, self.log_probability, self.ended)


def sample(
    engine: DecodeEngine,
    requests: Sequence[DecodeRequest],
    sampling: Sampling,
    stops: Stops,
    watch: Watch | None = None,
) -> list[list[Generated]]:
    """`sampling.texts` texts of each request. Collective within one replica of the model."""
    held = engine.prefill([request.reads for request in requests])
    texts = [
        [_Text(request, f"{sampling.seed}/{request.stream}/{number}", parent) for number in range(sampling.texts)]
        for parent, request in enumerate(requests)
    ]
    going = [text for of_one in texts for text in of_one]
    while going:
        parents, newest = (np.array(values) for values in zip(*((t.parent, t.newest) for t in going), strict=True))
        scores = engine.next_tokens(held, parents, newest)
        for number, (text, log_probability) in enumerate(zip(going, scores, strict=True)):
            token = choose(log_probability, sampling, f"{text.stream}/{len(text.tokens)}")
            text.tokens.append(token)
            text.log_probability += float(log_probability[token])
            text.parent = number
        if watch is not None and not watch([text.tokens for text in going]):
            break
        going = [text for text in going if not _over(text, stops)]
    return [[text.generated(stops) for text in of_one] for of_one in texts]


def _over(text: _Text, stops: Stops) -> bool:
    if stops.end(text.tokens):
        text.ended = "stop"
    elif len(text.tokens) == text.request.longest:
        text.ended = "longest"
    return text.ended != "interrupted"
