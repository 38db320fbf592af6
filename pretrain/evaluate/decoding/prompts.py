"""Prompts as a model reads them, and what it says as text.

A prompt may name the specials that its model knows: `<extra_id_0>` a sentinel, `[MASK]` or `<mask>` a mask. Each is
a token or several with the space before them, so one space before a name is left out.
"""

import re
from collections.abc import Sequence

from data_pipeline.tokenizers.base import Tokenizer
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.base import DecodeRequest, Stops

USUAL = 128
"""tokens made of a prompt, if nobody says how many"""
_MASKS = ("[MASK]", "<mask>")


class Prompts:
    """Encoding and decoding of prompts for one model."""

    def __init__(self, config: RunConfig, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._model = tokenizer, config.model
        self.specials = config.objective.specials(tokenizer)
        self.continues = config.objective.predicts_next
        sentinels = {f"<extra_id_{number}>": index for number, index in enumerate(self.specials.sentinels)}
        masks = dict.fromkeys(_MASKS, self.specials.mask) if self.specials.mask >= 0 else {}
        self._ids = sentinels | masks
        self._names = {index: name for name, index in reversed(self._ids.items())}
        self._named = re.compile(f" ?({'|'.join(map(re.escape, self._ids))})") if self._ids else None

    def encode(self, text: str) -> list[int]:
        """Ids of a text, with those that it names."""
        if self._named is None:
            return self._tokenizer.encode(text)
        parts = self._named.split(text)  # text, name, text, name, ..., text
        return [
            index
            for number, part in enumerate(parts)
            for index in ([self._ids[part]] if number % 2 else self._tokenizer.encode(part) if part else [])
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """Their text, with the names of sentinels and masks; others that are no text are left out."""
        parts: list[str] = []
        run: list[int] = []
        for index in ids:
            if index in self._names:
                parts += [self._tokenizer.decode(run), self._names[index]]
                run = []
            elif index < self._tokenizer.vocabulary_size:
                run.append(index)
        return "".join([*parts, self._tokenizer.decode(run)])

    def request(self, text: str, longest: int | None, called: str = "the prompt") -> DecodeRequest:
        """What the model reads of a prompt, to say `longest` tokens; if None, USUAL ones or as many as there is room
        for. Raises ConfigError, in which it is `called` so, if it doesn't fit the model."""
        ids = self.encode(text)
        if self.continues:
            ids = self._tokenizer.opened(ids) or [self._tokenizer.end_of_text]  # what comes before a document
            reads, start, read = ids[:-1], ids[-1], len(ids)
        else:
            reads, start = self.closed(ids), self.specials.start
            read = len(reads)
        length = self._model.sequence_length
        room = self._model.label_length if self._model.is_encoder_decoder else length - len(reads)
        if len(reads) > length or room < 1:
            raise ConfigError(f"{called} is {read} tokens long, and the model reads {length}: shorten it")
        if longest is not None and longest > room:
            raise ConfigError(
                f"{called} leaves room for {room} of the {longest} tokens of --max-tokens: "
                f"{'ask for fewer' if self._model.is_encoder_decoder else 'shorten it, or ask for fewer'}"
            )
        return DecodeRequest(reads, start, min(USUAL, room) if longest is None else longest, text)

    def closed(self, ids: Sequence[int]) -> list[int]:
        """An input with what its objective puts around it."""
        known = self.specials
        before, after = [known.cls] if known.cls >= 0 else [], known.sep if known.sep >= 0 else known.end
        return [*before, *ids, after]

    def context(self, request: DecodeRequest) -> list[int]:
        """Ids of the text that the model continues."""
        return [*request.reads, request.start] if self.continues else []

    def generated_text(self, request: DecodeRequest, tokens: Sequence[int]) -> str:
        """The generated text, without the context that the model continued."""
        context = self.context(request)
        before, full = self.decode(context), self.decode([*context, *tokens])
        return full[len(before) :] if full.startswith(before) else self.decode(tokens)

    def filled(self, request: DecodeRequest, tokens: Sequence[int]) -> str | None:
        """The prompt with each sentinel replaced by what was said for it; None where it has no sentinel."""
        sentinels = set(self.specials.sentinels)
        if sentinels.isdisjoint(request.reads):
            return None
        spans: dict[int, list[int]] = {}
        span: list[int] = []
        for token in tokens:
            if token in sentinels:
                span = spans.setdefault(token, [])
            else:
                span.append(token)
        return self.decode([part for index in request.reads[:-1] for part in spans.get(index, [index])])

    def stops(self, strings: Sequence[str]) -> Stops:
        """A document's end, or an input's; and the first of `strings`."""
        ends = frozenset({self._tokenizer.end_of_text, self.specials.end})
        if not strings:
            return Stops(ends)
        # A string of n bytes spans n tokens at most; the first one's space may be lost.
        window = max(len(string.encode()) for string in strings) + 1

        def stopped(tokens: Sequence[int]) -> bool:
            text = self.decode(tokens[-window:])
            return any(string in text for string in strings)

        return Stops(ends, stopped)
