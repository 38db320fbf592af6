"""Documents per second of few-shot scoring: ours, and lm-eval driving the same weights, side by side in one process.

    python -m tests.benchmarks.evaluation                     # GPT-2's 124M shape, random weights: about ten minutes
    python -m tests.benchmarks.evaluation --shape small --documents 20

Two tasks on made-up text: a passage whose last word is asked for (LAMBADA's form), and a question with four choices
after eight solved examples. lm-eval runs its own multiple_choice and loglikelihood tasks over the prompts that ours
made, so both score the same texts: with Hugging Face's GPT-2 in its own HFLM at each of the batch sizes, and with our
engine through `HarnessModel`. What is timed begins with documents in memory (lm-eval: with tasks and requests built)
and ends with scores. All take turns in each round, and each round gives a ratio of processor time, which other work on
the machine changes least; the decisions of every document are asserted to be equal.

The floor is what the products of the layers with the tokens that have to be read would take alone, at the rate of this
machine's matrix library for such products, measured in each round.
"""

import argparse
import platform
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median
from typing import Any

import lm_eval
import numpy as np
import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from data_pipeline.tokenizers.load import load_tokenizer
from data_pipeline.tokenizers.specials import Specials
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.engine import device as devices
from pretrain.engine import rendezvous
from pretrain.engine.base import Engine
from pretrain.engine.make import make_engine
from pretrain.evaluate.harness import HarnessModel
from pretrain.evaluate.protocol import build_prompt, shot_indices
from pretrain.evaluate.scorers.base import Scorer
from pretrain.evaluate.scorers.batches import groups
from pretrain.evaluate.scorers.causal import CausalScorer
from pretrain.evaluate.tasks.base import Continuation, Format, TaskDocument
from pretrain.interop.hf.families.gpt2 import hf_config, links
from pretrain.layout.layout import plan_layout
from pretrain.model_spec.parameters import num_parameters

SHAPES = {
    "124m": [],
    "small": ["model.layers=6", "model.hidden=256", "model.heads=4"],
    "tiny": ["model.layers=2", "model.hidden=32", "model.heads=2"],
}
SHOTS, CHOICES = 8, 4
Texts = list[tuple[str, list[str]]]
"""of each document the context, and what may follow"""


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="124m")
    parser.add_argument("--documents", type=int, default=60, help="of each task (default 60)")
    parser.add_argument("--batches", default="1,8,16", help="batch sizes of HFLM (default 1,8,16)")
    parser.add_argument("--rounds", type=int, default=3, help="in which all take turns (default 3)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = load(RunConfig, "configs/gpt2/124m.yaml", ["run.dir=unused", *SHAPES[options.shape]])
    config = config.model_copy(update={"precision": "fp32"})
    devices.install()
    rendezvous.init_process_group(config.health)
    engine = make_engine(config, plan_layout(config, 1), train=False)
    engine.initialise()
    tokenizer, theirs_tokenizer = _tokenizers()
    theirs = _theirs(config, engine)
    scorer = CausalScorer(engine, tokenizer, config.model.sequence_length)
    print(
        f"{num_parameters(config.model) / 1e6:.0f}M parameters, vocabulary {config.model.vocabulary:,}, fp32, "
        f"{options.threads} threads; {platform.processor() or platform.machine()}; torch {torch.__version__}, "
        f"transformers {transformers.__version__}, lm-eval {lm_eval.__version__}"
    )
    for name, texts in {
        "last word of a passage": _passages(options.documents),
        f"{CHOICES} choices, {SHOTS} shots": _questions(options.documents, scorer),
    }.items():
        tokens = sum(len(tokenizer.encode(context + targets[0])) for context, targets in texts) // len(texts)
        print(f"\n{name}: {len(texts)} documents of about {tokens} tokens")
        who: dict[str, Callable[[], np.ndarray]] = {"ours": lambda texts=texts: _ours(scorer, texts)}
        for batch in map(int, options.batches.split(",")):
            model = HFLM(
                pretrained=theirs, tokenizer=theirs_tokenizer, batch_size=batch, max_length=config.model.sequence_length
            )
            who[f"lm-eval, HFLM, batch {batch}"] = lambda m=model, t=texts: _lm_eval(m, t)
        harness = HarnessModel(engine, tokenizer, config.model.sequence_length)
        who["lm-eval, our engine"] = lambda m=harness, t=texts: _lm_eval(m, t)
        expected, to_read = who["ours"](), _tokens_to_read(scorer, texts)
        seconds: dict[str, list[float]] = {name: [] for name in ("floor", *who)}
        for _ in range(options.rounds):
            seconds["floor"].append(to_read / _tokens_a_second(config))
            for name, call in who.items():
                spent, scores = _timed(call)
                seconds[name].append(spent)
                _assert_equal(scores, expected)
        for name, spent in seconds.items():
            ratios = sorted(one / ours for one, ours in zip(spent, seconds["ours"], strict=True))
            print(
                f"  {name:26} {len(texts) / median(spent):8.2f} documents a processor-second; its time / ours: "
                f"{median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
            )


def _tokens_to_read(scorer: CausalScorer, texts: Texts) -> int:
    """Each once, where several choices share them."""
    pairs = [scorer.pair(context, target) for context, targets in texts for target in targets]
    owners = [number for number, (_, targets) in enumerate(texts) for _ in targets]
    found = groups(pairs, owners, scorer.length)
    return sum(len(group.begins) + sum(len(end) - 1 for end in group.ends) for group in found)


def _tokens_a_second(config: RunConfig, tokens: int = 1000) -> float:
    """Tokens per second of the matrix products of all layers, with `tokens` tokens at a time."""
    wide = config.model.hidden
    shapes = [(3 * wide, wide), (wide, wide), (4 * wide, wide), (wide, 4 * wide)]
    products = [(torch.randn(tokens, width), torch.randn(out, width)) for out, width in shapes]

    def once() -> None:
        for values, weight in products:
            torch.nn.functional.linear(values, weight)

    once()
    started = time.process_time()
    for _ in range(config.model.layers):
        once()
    return tokens / (time.process_time() - started)


def _timed(call: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    """Processor-seconds of all threads."""
    started = time.process_time()
    found = call()
    return time.process_time() - started, found


def _ours(scorer: Scorer, texts: Texts) -> np.ndarray:
    pairs = [scorer.pair(context, target) for context, targets in texts for target in targets]
    owners = [number for number, (_, targets) in enumerate(texts) for _ in targets]
    return scorer.score(pairs, owners)


def _lm_eval(model: Any, texts: Texts) -> np.ndarray:
    """What its tasks ask of a model, in the order they ask."""
    requests = [
        Instance("loglikelihood", {}, (context, target), number)
        for number, (context, targets) in enumerate(texts)
        for target in targets
    ]
    return np.array(model.loglikelihood(requests, disable_tqdm=True))


def _assert_equal(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found[:, 0] - expected[:, 0]).max() < 1e-3 * np.abs(expected[:, 0]).max(), "other scores"
    np.testing.assert_array_equal(found[:, 1], expected[:, 1])


def _tokenizers() -> tuple[Any, PreTrainedTokenizerFast]:
    """A byte-level BPE of the text, ours and as transformers reads it."""
    from tokenizers import ByteLevelBPETokenizer

    with tempfile.TemporaryDirectory() as folder:
        trained = ByteLevelBPETokenizer()
        trained.train_from_iterator(topics.values(), vocab_size=4096, special_tokens=["<|endoftext|>"])
        path = Path(folder) / "tokenizer.json"
        trained.save(str(path))
        ours = load_tokenizer(path)
        path.write_text(ours.to_json())
        return ours, PreTrainedTokenizerFast(tokenizer_file=str(path), eos_token="<|endoftext|>")


def _theirs(config: RunConfig, engine: Engine) -> GPT2LMHeadModel:
    """The same weights."""
    parts = engine.state()
    weights = {
        name.removeprefix("model/"): part.pieces[0].value.detach().reshape(part.shape) for name, part in parts.items()
    }
    known = Specials(
        pad=-1, cls=-1, sep=-1, mask=-1, start=-1, end=-1, sentinels=(), vocabulary=config.model.vocabulary or 0
    )
    model = GPT2LMHeadModel(hf_config(config.model, known)).eval()
    for link in links(config.model):
        values = link.out(*(weights[name] for name in link.mcore_names))
        model.load_state_dict(dict(zip(link.hf_names, values, strict=True)), strict=False)
    model.tie_weights()
    return model


def _sentences() -> list[str]:
    text = " ".join(" ".join(topics.values()).split())
    return [sentence.strip() for sentence in text.split(". ") if 40 < len(sentence) < 160]


def _passages(count: int) -> Texts:
    """Texts of about LAMBADA's length, 75 words."""
    draw, found = random.Random(0), []
    sentences = [sentence for sentence in _sentences() if sentence[-1].isalpha()]
    for _ in range(count):
        passage = ". ".join(draw.sample(sentences, 5))
        context, _, word = passage.rpartition(" ")
        found.append((context, [f" {word}"]))
    return found


def _questions(count: int, scorer: Scorer) -> Texts:
    """Which of four sentences follows two."""
    draw, sentences, documents = random.Random(1), _sentences(), []
    for _ in range(count + SHOTS):
        first, second, *others = draw.sample(sentences, 2 + CHOICES)
        context = f"{first}. {second}."
        choices = tuple(Continuation(context, f" {other}") for other in others)
        documents.append(TaskDocument(context, choices[0].target, choices, (0,)))
    found: Texts = []
    for number in range(count):
        drawn = shot_indices("questions", number, len(documents), SHOTS, seed=0)
        shown = [documents[index] for index in drawn.numbers]
        prompt = build_prompt(Format(fewshot_delimiter="\n\n"), shown, documents[number], scorer, 0)
        found.append((prompt.text, [one.target for one in prompt.continuations]))
    return found


if __name__ == "__main__":
    main()
