"""lm-eval drives our model: `lm_eval.simple_evaluate(model=HarnessModel(engine, tokenizer, length), tasks=[...])`.

Every rank runs lm-eval with the same arguments; the requests are divided over data ranks in here (lm-eval's own
division would change the shots it draws), and all ranks get all answers. There is no cache: lm-eval's response cache
doesn't tell models apart. Its shots are drawn by its own rules, so only zero-shot prompts equal ours.
"""

from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from data_pipeline.tokenizers.base import Tokenizer
from pretrain.engine.base import Engine
from pretrain.errors import ConfigError
from pretrain.evaluate.protocol import answer_text, stop_token
from pretrain.evaluate.scoring import (
    Pair,
    gather,
    generate_answers,
    my_items,
    pad_answers,
    score_pairs,
    unpad_answers,
)

_NEW_TOKENS = 256  # lm-eval's default where a task sets none


class HarnessModel(TemplateLM):
    """An engine and its tokenizer, as lm-eval wants them."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, sequence_length: int, batch_rows: int = 16) -> None:
        super().__init__()
        self.engine, self.text, self.length, self.rows = engine, tokenizer, sequence_length, batch_rows

    @property
    def eot_token_id(self) -> int:
        return self.text.end_of_text

    @property
    def tokenizer_name(self) -> str:
        return self.text.identity

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Our tokenizers add no special tokens, asked or not."""
        return self.text.encode(string)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Each text's log-probability after an end of text, every token once, in windows of the model's length."""
        windows: list[Pair] = []
        owners: list[int] = []
        for owner, request in enumerate(requests):
            ids = self.text.encode(request.args[0])
            for window in get_rolling_token_windows(ids, self.eot_token_id, self.length, context_len=1):
                windows.append(make_disjoint_window(window))
                owners.append(owner)
        totals = [0.0] * len(requests)
        for owner, (log_probability, _) in zip(owners, self._score(windows), strict=True):
            totals[owner] += log_probability
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy only. Raises ConfigError when a task asks for sampling."""
        answers = [""] * len(requests)
        alike: dict[tuple[int, int], list[int]] = {}  # requests that can be generated together
        for number, request in enumerate(requests):
            settings = request.args[1]
            if settings.get("do_sample") or settings.get("num_beams", 1) != 1:
                raise ConfigError(
                    f"lm-eval's task {request.task_name} asks for {settings}, and our models answer it greedily: set "
                    "do_sample to false and num_beams to 1 in its generation_kwargs, or with --gen_kwargs"
                )
            key = (settings.get("max_gen_toks", _NEW_TOKENS), stop_token(self.text, _stops(settings)))
            alike.setdefault(key, []).append(number)
        for (new_tokens, stop), numbers in alike.items():
            prompts = [self.text.encode(requests[number].args[0]) or [self.eot_token_id] for number in numbers]
            for number, ids in zip(numbers, self._generate(prompts, new_tokens, stop), strict=True):
                answers[number] = answer_text(self.text, ids, _stops(requests[number].args[1]))
        return answers

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        return self._score([(context, continuation) for _, context, continuation in requests])

    def _score(self, pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
        mine = [pairs[item] for item in my_items(self.engine, len(pairs))]
        scored = gather(self.engine, score_pairs(self.engine, mine, self.length, self.rows), len(pairs))
        return [(float(log_probability), bool(greedy)) for log_probability, greedy in scored]

    def _generate(self, prompts: Sequence[Sequence[int]], new_tokens: int, stop: int) -> list[list[int]]:
        mine = [prompts[item] for item in my_items(self.engine, len(prompts))]
        answers = generate_answers(self.engine, mine, new_tokens, stop, self.length, self.rows)
        return unpad_answers(gather(self.engine, pad_answers(answers, new_tokens), len(prompts)))


def _stops(settings: dict[str, Any]) -> list[str]:
    until = settings.get("until") or []
    return [until] if isinstance(until, str) else list(until)
