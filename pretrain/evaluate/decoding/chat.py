"""A conversation with a model: a chat template renders its turns as the text that the model continues."""

from data_pipeline.recipes.chat_template import ChatTemplate
from data_pipeline.tokenizers.base import Tokenizer
from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.base import DecodeRequest
from pretrain.evaluate.decoding.prompts import USUAL


class Chat:
    """The turns so far, of which the oldest are left out once the model has no positions for them."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, sequence_length: int) -> None:
        self.turns: list[dict[str, str]] = []
        self.num_left_out = 0
        """questions that the newest request leaves out, with their answers"""
        self._template, self._tokenizer, self._length = template, tokenizer, sequence_length
        self.special = frozenset({tokenizer.end_of_text, *tokenizer.special_pieces().values()})
        """ids that end an answer, and are no text of it"""

    def request(self, text: str, longest: int | None, stream: str) -> DecodeRequest:
        """Request for an answer to `text`, the next turn of the user, in `longest` tokens; None: the usual number, or
        as many as there is room for. Raises ConfigError, and keeps the turns as they were, for a text that does not
        fit, or that the template can't render."""
        if piece := self._template.special_piece_in(text):
            raise ConfigError(f"the line holds {piece!r}, a special token of the tokenizer: leave it out")
        needed = min(USUAL, self._length // 4) if longest is None else longest
        turns, num_left_out = [*self.turns, {"role": "user", "content": text}], 0
        ids = self._ids(turns)
        while len(turns) > 1 and self._room(ids) < needed:
            turns, num_left_out = turns[2:], num_left_out + 1
            ids = self._ids(turns)
        room = self._room(ids)
        if room < (longest or 1):
            raise ConfigError(
                f"the line is {len(ids)} tokens long with its template, which leaves room for {max(room, 0)} of the "
                f"model's {self._length}: shorten it{', or ask for fewer with --max-tokens' if longest else ''}"
            )
        self.turns, self.num_left_out = turns, num_left_out
        return DecodeRequest(ids[:-1], ids[-1], min(USUAL, room) if longest is None else longest, stream)

    def answered(self, text: str) -> None:
        """Adds the answer to the newest request to the conversation."""
        self.turns.append({"role": "assistant", "content": text.strip()})

    def _room(self, ids: list[int]) -> int:
        return self._length - (len(ids) - 1)

    def _ids(self, turns: list[dict[str, str]]) -> list[int]:
        try:
            text = self._template.question(turns)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        ((ids, offsets),) = self._template.encode([text])
        if (taken := self._template.forged(text, ids, offsets)) is not None:
            raise ConfigError(f"the tokenizer takes {taken!r} for a special token: leave it out")
        return ids.tolist() or [self._tokenizer.before_text]
