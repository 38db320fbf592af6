"""Documents -> prompts -> scores -> one dict of results.

Sums and counts of every task at every number of shots, and the ratios formed from them. Scores of single documents
travel between ranks, so equal scores give equal results on any layout.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.recipes.base import Recipe
from data_pipeline.tokenizers.base import Tokenizer
from pretrain.engine.base import Engine
from pretrain.errors import ConfigError, RunError
from pretrain.evaluate.heldout import count_text, exp, heldout_loss
from pretrain.evaluate.protocol import Prompt, answer_text, build_prompt, shot_indices, stop_token
from pretrain.evaluate.scoring import gather, generate_answers, my_items, pad_answers, score_pairs, unpad_answers
from pretrain.evaluate.tasks.base import Sources, Task, TaskDocument
from pretrain.evaluate.tasks.registry import HELD_OUT, TASKS, check_names

_SAMPLES = 3
_STOPS = ("\n",)  # an answer is what the model says up to a newline, without white space around it

_HELD_OUT_VALUES = (
    *("loss_sum", "token_count", "words", "text_bytes"),
    *("loss", "perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"),
)

Results = dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True)
class Evaluation:
    """What was scored, the same on every rank."""

    results: Results
    """task -> number of shots -> sums, counts and metrics; nothing that equal scores could differ in"""
    samples: dict[str, dict[str, list[dict[str, Any]]]]
    """task -> number of shots -> the first documents: prompt, target, and what the model made of them"""
    documents: dict[str, Sequence[TaskDocument]]
    """task -> the documents that were scored"""
    right: dict[str, dict[str, Sequence[bool]]]
    """task -> number of shots -> whether each document was answered rightly, by `main_metric`"""


@dataclass(frozen=True)
class Settings:
    """How to evaluate."""

    shots: Sequence[int]
    """numbers of solved examples in the prompt"""
    sequence_length: int
    """positions of the model"""
    limit: int | None = None
    """documents per task (windows of `heldout`), the first ones; None: all"""
    seed: int = 0
    """of the choice of shots, and of generated documents"""
    data_dir: Path | None = None
    """directory with benchmark files; None: arithmetic is generated"""
    recipe: Recipe | None = None
    """what held-out samples are made by; None: windows of the model's length, for the next token"""
    batch_rows: int = 16
    """documents scored at a time on each data rank"""


def evaluate(
    engine: Engine,
    tokenizer: Tokenizer,
    dataset: Dataset | None,
    tasks: Sequence[str],
    settings: Settings,
    progress: Callable[[str], None] = lambda line: None,
) -> Evaluation:
    """Scores `tasks` at every number of shots. Collective over all ranks.

    Raises ConfigError for an unknown task, a missing file or text too short for the shots; RunError when the model's
    scores are not numbers.
    """
    check_names(tasks)
    if settings.limit is not None and settings.limit < 1:
        raise ConfigError(f"a limit of {settings.limit} documents leaves nothing to score")
    if min(settings.shots, default=-1) < 0:
        raise ConfigError("shots are numbers of examples, such as 0,1,8")
    sources = Sources(settings.data_dir, dataset, tokenizer, settings.seed)
    documents = {name: TASKS[name].load(sources) for name in tasks if name != HELD_OUT}  # all, so that none fails late
    results: Results = {}
    samples: dict[str, dict[str, list[dict[str, Any]]]] = {}
    right: dict[str, dict[str, Sequence[bool]]] = {}
    for name in tasks:
        if name == HELD_OUT:
            progress(name)
            results[name] = {"0": _held_out(engine, tokenizer, dataset, settings)}
            continue
        results[name], samples[name], right[name] = {}, {}, {}
        for shots in settings.shots:
            progress(f"{name}, {shots} shots")
            scored = _score_task(engine, tokenizer, TASKS[name], documents[name], shots, settings)
            results[name][str(shots)], samples[name][str(shots)], right[name][str(shots)] = scored
    return Evaluation(results, samples, {name: documents[name][: settings.limit] for name in right}, right)


def main_metric(result: dict[str, Any]) -> str:
    """The share of right answers that GPT-3's paper reports."""
    return "exact_match" if "exact_match" in result else "accuracy"


def fraction(name: str, hits: NDArray[Any]) -> dict[str, Any]:
    """Count, mean and standard error of the mean of zeros and ones (the estimate from a sample, as lm-eval's)."""
    count, total = len(hits), int(hits.sum())
    mean = total / count
    error = math.sqrt(mean * (1 - mean) / (count - 1)) if count > 1 else None
    return {f"{name}_count": total, name: mean, f"{name}_stderr": error}


def _score_task(
    engine: Engine, tokenizer: Tokenizer, task: Task, documents: Sequence[TaskDocument], shots: int, settings: Settings
) -> tuple[dict[str, Any], list[dict[str, Any]], Sequence[bool]]:
    """The result, samples, and whether each document was answered rightly."""
    count = min(len(documents), settings.limit or len(documents))
    # An answer has no more tokens than bytes, whatever the model spells it with; one more for the newline after it.
    answer_tokens = max(len(d.target.encode()) for d in documents) + 1 if task.generates else 0

    def prompt(index: int) -> Prompt:
        examples = shot_indices(task.name, index, len(documents), shots, settings.seed)
        return build_prompt(
            task.format(shots),
            [documents[example] for example in examples],
            documents[index],
            tokenizer,
            settings.sequence_length,
            answer_tokens,
        )

    prompts = [prompt(index) for index in my_items(engine, count)]
    length, rows = settings.sequence_length, settings.batch_rows
    scored = score_pairs(engine, [(p.context_ids, p.target_ids) for p in prompts], length, rows)
    fitted = np.array([(p.shots, p.truncated) for p in prompts]).reshape(-1, 2)
    log_probability, greedy, shown_shots, cut = gather(engine, np.hstack([scored, fitted]), count).T
    result = {
        "documents": count,
        "truncated": int(cut.sum()),
        "mean_shots": int(shown_shots.sum()) / count,
        **fraction("accuracy", greedy),
        "log_probability_sum": math.fsum(log_probability),
        **_perplexity(log_probability),
    }
    right = greedy.astype(bool).tolist()
    shown = [_sample(prompt(i), log_probability[i], greedy[i]) for i in range(min(_SAMPLES, count))]
    if task.generates:
        stop = stop_token(tokenizer, _STOPS)
        answers = generate_answers(engine, [p.context_ids for p in prompts], answer_tokens, stop, length, rows)
        ids = unpad_answers(gather(engine, pad_answers(answers, answer_tokens), count))
        texts = [answer_text(tokenizer, answer, _STOPS).strip() for answer in ids]
        right = [text == document.target.strip() for text, document in zip(texts, documents[:count], strict=True)]
        result |= fraction("exact_match", np.array(right))
        shown = [{**sample, "answer": texts[number]} for number, sample in enumerate(shown)]
    return result, shown, right


def _held_out(engine: Engine, tokenizer: Tokenizer, dataset: Dataset | None, settings: Settings) -> dict[str, Any]:
    if dataset is None:
        raise ConfigError(f"task {HELD_OUT} scores the run's held-out text: give a run whose data can be read")
    scored = heldout_loss(engine, dataset, settings.recipe or settings.sequence_length, settings.limit)
    if not math.isfinite(scored.loss_sum):
        raise RunError("the model's held-out loss is not a number: it diverged, or its checkpoint is damaged")
    if settings.recipe is None:
        scored = count_text(scored, dataset, tokenizer)
    return {name: getattr(scored, name) for name in _HELD_OUT_VALUES}


def _perplexity(log_probability: NDArray[np.float64]) -> dict[str, Any]:
    """Of the target as a whole, over documents, as LAMBADA's; its standard error to first order."""
    count = len(log_probability)
    perplexity = exp(-math.fsum(log_probability) / count)
    error = None
    if perplexity is not None and count > 1:
        error = perplexity * float(log_probability.std(ddof=1)) / math.sqrt(count)
    return {"perplexity": perplexity, "perplexity_stderr": error}


def _sample(prompt: Prompt, log_probability: float, greedy: float) -> dict[str, Any]:
    return {
        "prompt": prompt.text,
        "target": prompt.target.strip(),
        "probability": math.exp(log_probability),
        "greedy": bool(greedy),
    }
