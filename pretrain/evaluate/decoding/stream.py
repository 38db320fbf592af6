"""A text as it comes, token by token, in complete characters: a token may hold part of one."""

from collections.abc import Callable, Sequence

_UNKNOWN = "\ufffd"  # what decoding shows for bytes that make no character
_LONGEST = 3  # bytes that begin a character of UTF-8 and do not end it


class TextStream:
    """A stream of one text, which follows the tokens of `context` and ends before the first of `stops`."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = (), stops: Sequence[str] = ()
    ) -> None:  # fmt: skip
        self._decode, self._tokens, self._stops = decode, list(context), stops
        self._before = len(decode(self._tokens))
        self._shown = 0

    def add(self, token: int) -> str:
        """Text that is complete now and was not before: neither a part of a character nor, perhaps, of a stop."""
        self._tokens.append(token)
        text = self._text()
        signs = len(text) - len(text.rstrip(_UNKNOWN))
        begun = [size for stop in self._stops for size in range(len(stop)) if text.endswith(stop[:size])]
        return self._up_to(text, len(text) - max(min(signs, _LONGEST), *begun, 0))

    def end(self) -> str:
        """The rest, with the sign of bytes that make no character if there are any."""
        text = self._text()
        return self._up_to(text, len(text))

    def _text(self) -> str:
        return until(self._decode(self._tokens)[self._before :], self._stops)

    def _up_to(self, text: str, end: int) -> str:
        new = text[self._shown : end]
        self._shown = max(self._shown, end)
        return new


def stop_test(decode: Callable[[Sequence[int]], str], stops: Sequence[str]) -> Callable[[Sequence[int]], bool] | None:
    """A test of generated tokens: whether the text of the last ones has one of `stops`. None: there are no `stops`."""
    if not stops:
        return None
    window = max(len(stop.encode()) for stop in stops) + 1  # n bytes are n tokens at most; the first may lose its space

    def stopped(tokens: Sequence[int]) -> bool:
        text = decode(tokens[-window:])
        return any(stop in text for stop in stops)

    return stopped


def until(text: str, stops: Sequence[str]) -> str:
    """A text up to the first of `stops`."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]
