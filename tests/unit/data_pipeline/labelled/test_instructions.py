"""Samples of conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from data_pipeline.errors import DataError
from data_pipeline.heldout import heldout
from data_pipeline.labelled.dataset import LabelledDataset
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.instructions import Instructions, InstructionsRecipe, InstructionsSamples
from tests.helpers.datasets import make_documents
from tests.unit.data_pipeline.labelled.conftest import Write

LENGTH = 64
CHATML = (
    "{% for message in messages %}\n{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}\n{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def _rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    texts = make_documents(seed, 2 * count)
    return [{"prompt": a[:30], "response": b} for a, b in zip(texts[::2], texts[1::2], strict=True)]


def _talks(count: int) -> list[dict[str, Any]]:
    texts = [text[:20] for text in make_documents(0, 5 * count)]
    roles = ("system", "user", "assistant", "user", "assistant")
    return [
        {"messages": [{"role": role, "content": text} for role, text in zip(roles, texts[n:], strict=False)]}
        for n in range(0, 5 * count, 5)
    ]


def _samples(dataset: LabelledDataset, length: int = LENGTH, split: Any = "train", **more: Any) -> InstructionsSamples:
    samples = _recipe(dataset, length, **more).samples(dataset, split)
    assert isinstance(samples, InstructionsSamples)
    return samples


def _recipe(dataset: LabelledDataset, length: int = LENGTH, **more: Any) -> InstructionsRecipe:
    recipe = Instructions(**{"packing": "rows", **more}).recipe(dataset.tokenizer(), length, decoder_only=True)
    assert isinstance(recipe, InstructionsRecipe)
    return recipe


def _prompt(samples: InstructionsSamples, row_number: int) -> list[int]:
    reads, start = samples.question(row_number, 8)
    return [*reads.tolist(), start]


def _ids(count: int, epoch: int = 0) -> np.ndarray:
    return np.stack([np.zeros(count), np.full(count, epoch), np.arange(count)], axis=1).astype(np.int64)


@pytest.fixture
def chat(write: Write, tmp_path: Path) -> tuple[LabelledDataset, str]:
    """Conversations with a tokenizer that knows ChatML's tokens, and the template's file."""
    dataset = write(_talks(8), kind="byte_bpe")
    tokenizer = Tokenizer.from_file(str(dataset.tokenizer_path))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<|im_start|>", "<|im_end|>")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    return LabelledDataset(dataset.address, tmp_path / "tokenizer.json"), str(tmp_path / "chat_template.jinja")


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe", "unigram", "bytes"])
def test_the_loss_counts_on_the_response_and_its_end(write: Write, kind: str) -> None:
    rows = _rows(10)
    dataset = write(rows, kind=kind)
    tokenizer = dataset.tokenizer()
    samples = _samples(dataset, 1500)
    made = samples.rows(0, _ids(10))
    assert (samples.count, samples.num_skipped, made.documents) == (10, 0, None)
    for n, row in enumerate(rows):
        prompt, response = tokenizer.encode(row["prompt"]), tokenizer.encode(row["response"])
        ids = [*prompt, *response, tokenizer.end_of_text]
        assert made.tokens[n, : len(ids) - 1].tolist() == ids[:-1]
        counted = np.flatnonzero(made.loss_mask[n])
        assert made.labels[n, counted].tolist() == [*response, tokenizer.end_of_text]
        assert counted.tolist() == list(range(len(prompt) - 1, len(ids) - 1))
        assert _prompt(samples, n) == prompt
        assert samples.references(n) == [row["response"]]


def test_a_packed_row_holds_entire_conversations_each_once_an_epoch(write: Write) -> None:
    rows = _rows(60)
    dataset = write(rows)
    samples, alone = _samples(dataset, 128, packing="best_fit"), _samples(dataset, 128)
    assert samples.num_skipped == alone.num_skipped
    single = alone.rows(0, _ids(alone.count))
    sizes = [int(np.flatnonzero(mask).max()) + 1 for mask in single.loss_mask]
    expected = sorted(
        (single.tokens[n, :size].tobytes(), single.labels[n, :size].tobytes(), single.loss_mask[n, :size].tobytes())
        for n, size in enumerate(sizes)
    )
    orders = set()
    for epoch in range(2):
        packed = samples.rows(5, _ids(samples.count, epoch))
        assert packed.documents is not None
        found = []
        for n in range(samples.count):
            documents = packed.documents[n]
            assert (np.diff(documents[documents >= 0]) >= 0).all()
            for document in range(int(documents.max()) + 1):
                cells = documents == document
                found.append(
                    (
                        packed.tokens[n, cells].tobytes(),
                        packed.labels[n, cells].tobytes(),
                        packed.loss_mask[n, cells].tobytes(),
                    )
                )
            assert not packed.loss_mask[n, documents < 0].any()
        assert sorted(found) == expected
        orders.add(packed.tokens.tobytes())
    assert len(orders) == 2, "rows have other neighbours in each epoch"
    assert samples.count < alone.count


def test_conversations_without_space_for_their_response_are_skipped(write: Write) -> None:
    dataset = write([{"prompt": "ab " * 70, "response": "c"}, {"prompt": "a", "response": "ab " * 70}], kind="bytes")
    for packing in ("rows", "best_fit"):
        samples = _samples(dataset, packing=packing)
        assert (samples.count, samples.num_skipped) == (1, 1)
        assert samples.rows(0, _ids(1)).loss_mask.sum() == LENGTH
    with pytest.raises(DataError, match=r"No conversation of .*train.jsonl has a response within 2 positions"):
        _samples(write([{"prompt": "abc", "response": "d"}], kind="bytes"), 2)


def test_a_template_renders_turns_as_transformers_does(chat: tuple[LabelledDataset, str]) -> None:
    from transformers import PreTrainedTokenizerFast

    dataset, template = chat
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(dataset.tokenizer_path), chat_template=CHATML)
    samples = _samples(dataset, 600, messages="messages", chat_template=template)
    made = samples.rows(0, _ids(8))
    for n in range(8):
        messages = dataset.row("train", n)["messages"]
        ids = theirs.apply_chat_template(messages, tokenize=True, return_dict=False)
        assert [made.tokens[n, 0], *made.labels[n, : len(ids) - 1].tolist()] == ids
        counted = made.labels[n, made.loss_mask[n] > 0].tolist()
        replies = [one["content"] for one in messages if one["role"] == "assistant"]
        assert theirs.decode(counted) == "".join(f"{reply}<|im_end|>\n" for reply in replies)
        begun = theirs.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=False)
        assert _prompt(samples, n) == begun
        assert samples.references(n) == [replies[-1]]


def test_a_prompt_and_its_response_are_two_turns_of_a_template(chat: tuple[LabelledDataset, str], write: Write) -> None:
    turns, template = chat
    rows = _rows(2)
    dataset = LabelledDataset(write(rows, name="pairs").address, turns.tokenizer_path)
    samples = _samples(dataset, 900, chat_template=template)
    text = f"<|im_start|>user\n{rows[0]['prompt']}<|im_end|>\n<|im_start|>assistant\n"
    assert dataset.tokenizer().decode(_prompt(samples, 0)) == text.replace("<|im_start|>", "").replace("<|im_end|>", "")


def test_the_order_is_of_the_template_s_content(chat: tuple[LabelledDataset, str], tmp_path: Path) -> None:
    dataset, template = chat
    (tmp_path / "same.jinja").write_text(CHATML)
    (tmp_path / "other.jinja").write_text(CHATML.replace("'\\n'}}", "''}}"))
    files = [template, str(tmp_path / "same.jinja"), str(tmp_path / "other.jinja")]
    first, same, other = (
        SampleStream([(dataset, 1.0)], _recipe(dataset, 300, messages="messages", chat_template=file), 0).fingerprint
        for file in files
    )
    assert first == same != other


@pytest.mark.parametrize("packing", ["rows", "best_fit"])
def test_a_sample_does_not_depend_on_its_batch(write: Write, packing: str) -> None:
    dataset = write(_rows(30))
    stream = SampleStream([(dataset, 1.0)], _recipe(dataset, 128, packing=packing), seed=1)
    batch = stream.batch(0, 24)
    for name, _, values in batch.columns():
        assert (np.concatenate([getattr(stream.batch(n, 1), name) for n in range(24)]) == values).all()
        assert (np.concatenate([getattr(stream.batch(0, 24, n, 4), name) for n in range(4)]) == values).all()


@pytest.mark.parametrize("packing", ["rows", "best_fit"])
@pytest.mark.parametrize("world", [1, 4])
def test_each_validation_response_is_scored_once(write: Write, packing: str, world: int) -> None:
    dataset = write(_rows(3), _rows(23, 1))
    recipe = _recipe(dataset, 1500, packing=packing)
    batches = [b for rank in range(world) for b in heldout(dataset, recipe, 4, data_rank=rank, data_world=world)]
    tokens = sum(len(dataset.tokenizer().encode(row["response"])) + 1 for row in _rows(23, 1))
    assert sum(batch.loss_mask.sum() for batch in batches) == tokens


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"messages": "a"}, r"the field 'messages' is not a list of turns with a role and a content"),
        ({"messages": [{"role": "user"}]}, r"the field 'messages' is not a list of turns"),
        ({"messages": [{"role": "user", "content": "a"}]}, r"no turn has the role assistant"),
        ({"messages": [{"role": "assistant", "content": ""}]}, r"the content of the turn 0 is empty"),
        (
            {"messages": [{"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "a"}]},
            r"the content of the turn 0 holds '<\|im_end\|>', a special token",
        ),
        ({"prompt": "a"}, r"the row has no field 'messages'"),
    ],
)
def test_a_bad_row_is_named(chat: tuple[LabelledDataset, str], row: Any, problem: str) -> None:
    dataset, template = chat
    dataset.path("train").write_text(json.dumps(_talks(1)[0]) + "\n" + json.dumps(row) + "\n")
    again = LabelledDataset(dataset.address, dataset.tokenizer_path)
    with pytest.raises(DataError, match=rf"train.jsonl, line 2: {problem}"):
        _samples(again, 300, messages="messages", chat_template=template)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{% for", "is no Jinja template"),
        ("{{ messages[7].content }}", "line 1: the chat template .* can't render the conversation"),
        ("{{ raise_exception('no system turn') }}", r"can't render the conversation \(no system turn\)"),
        ("{{ messages | length }}", "changes what it renders of the turns before the turn 2"),
    ],
)
def test_a_template_that_does_not_suit_is_named(chat: tuple[LabelledDataset, str], source: str, problem: str) -> None:
    dataset, template = chat
    Path(template).write_text(source)
    with pytest.raises(DataError, match=problem):
        _samples(dataset, 300, messages="messages", chat_template=template)


def test_turns_need_a_template(write: Write) -> None:
    with pytest.raises(DataError, match=r"objective.messages needs a template"):
        _recipe(write(_talks(2)), messages="messages")
    with pytest.raises(DataError, match=r"The chat template missing.jinja can't be read"):
        _recipe(write(_talks(2)), chat_template="missing.jinja")


@pytest.mark.parametrize("prompt", ["", 3])
def test_a_prompt_is_text(write: Write, prompt: Any) -> None:
    dataset = write([{"prompt": prompt, "response": "a"}])
    with pytest.raises(DataError, match=r"train.jsonl, line 1: the field 'prompt' is "):
        _samples(dataset)
