"""lm-eval drives our model: `lm_eval.simple_evaluate(model=HarnessModel(engine, tokenizer, length), tasks=[...])`.

Every rank runs lm-eval with the same arguments; the requests are divided over data ranks in here (lm-eval's own
division would change the shots it draws), and all ranks get all answers. There is no cache: lm-eval's response cache
doesn't tell models apart. Its shots are drawn by its own rules, so only zero-shot prompts equal ours.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from data_pipeline.tokenizers.base import Tokenizer
from pretrain.engine.base import Engine
from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.base import Beam, DecodeRequest, Decoding, Sampling
from pretrain.evaluate.decoding.decode import decode
from pretrain.evaluate.ranks import gather, my_items
from pretrain.evaluate.scorers.base import Pair, answer_text, stops_at
from pretrain.evaluate.scorers.causal import CausalScorer
from pretrain.evaluate.tasks.metric_names import MAX_GEN_TOKS

_CHOICES = 16  # a document's requests follow each other: those of one context, among so many, share it
_SETTINGS = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p", "num_beams", "length_penalty")


class HarnessModel(TemplateLM):
    """An engine and its tokenizer behind the model interface of lm-eval."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, sequence_length: int, tokens: int | None = None) -> None:
        """`tokens`: positions that are scored at a time, on each data rank."""
        super().__init__()
        self.engine, self.text, self.length = engine, tokenizer, sequence_length
        self.scorer = CausalScorer(engine, tokenizer, sequence_length, tokens)

    @property
    def eot_token_id(self) -> int:
        return self.text.end_of_text

    @property
    def prefix_token_id(self) -> int:
        """Id that lm-eval puts before a text without a context."""
        return self.text.before_text

    @property
    def tokenizer_name(self) -> str:
        return self.text.identity

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Ids of a text. Our tokenizers never add special tokens."""
        return self.text.encode(string)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Each text's log-probability after what comes before one, every token once, in windows of the model's
        length."""
        windows: list[Pair] = []
        owners: list[int] = []
        for owner, request in enumerate(requests):
            ids = self.text.encode(request.args[0])
            for window in get_rolling_token_windows(ids, self.prefix_token_id, self.length, context_len=1):
                windows.append(make_disjoint_window(window))
                owners.append(owner)
        totals = [0.0] * len(requests)
        for owner, (log_probability, _) in zip(owners, self._score(windows), strict=True):
            totals[owner] += log_probability
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy decoding, sampling (`do_sample` or a temperature, `top_k`, `top_p`) or beam search (`num_beams`, with
        GNMT's `length_penalty`). Repeated requests of one prompt get different samples, the same ones in every
        evaluation. If `max_gen_toks` is at least the model's length, the prompt gets half of the positions. Raises
        ConfigError for other settings."""
        answers = [""] * len(requests)
        alike: dict[str, list[int]] = {}  # requests that can be decoded together
        settings = [_settings(request.args[1]) for request in requests]
        for number, of_request in enumerate(settings):
            alike.setdefault(repr((_decoding(of_request), of_request["until"])), []).append(number)
        times: Counter[str] = Counter()
        for numbers in alike.values():
            first = settings[numbers[0]]
            decode_requests = []
            for number in numbers:
                prompt = requests[number].args[0]
                decode_requests.append(self._request(prompt, settings[number]["max_gen_toks"], times[prompt]))
                times[prompt] += 1
            decoded = decode(self.engine, decode_requests, _decoding(first), stops_at(self.text, first["until"]))
            for number, texts in zip(numbers, decoded, strict=True):
                answers[number] = answer_text(self.text, texts[0].tokens, first["until"])
        return answers

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        return self._score([(self._opened(context), continuation) for _, context, continuation in requests])

    def _opened(self, ids: list[int]) -> list[int]:
        return ids if ids[:1] == [self.prefix_token_id] else self.text.opened(ids)

    def _score(self, pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
        mine = [pairs[item] for item in my_items(self.engine, len(pairs))]
        contexts = [tuple(context) for context, _ in mine]
        owners = [contexts.index(context, max(0, at - _CHOICES)) for at, context in enumerate(contexts)]
        scored = gather(self.engine, self.scorer.score(mine, owners), len(pairs))
        return [(float(log_probability), bool(greedy)) for log_probability, greedy in scored]

    def _request(self, prompt: str, longest: int, time: int) -> DecodeRequest:
        if longest >= self.length:
            longest = self.length - self.length // 2
        ids = (self.text.opened(self.text.encode(prompt)) or [self.eot_token_id])[-(self.length - longest) :]
        return DecodeRequest(ids[:-1], ids[-1], longest, f"{prompt}/{time}" if time else prompt)


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """Generation settings, normalized as lm-eval does for its own models."""
    settings = dict(normalize_gen_kwargs(given, MAX_GEN_TOKS))
    if unknown := settings.keys() - _SETTINGS:
        raise ConfigError(
            f"generation_kwargs: {', '.join(sorted(unknown))} changes nothing here: leave it out; known are "
            + ", ".join(_SETTINGS)
        )
    return settings


def _decoding(settings: dict[str, Any]) -> Decoding:
    if settings.get("num_beams", 1) > 1:
        return Beam(settings["num_beams"], settings.get("length_penalty", 0.0))
    if not settings["do_sample"]:
        return Sampling()
    return Sampling(settings.get("temperature", 1.0), settings.get("top_k") or None, settings.get("top_p"))
