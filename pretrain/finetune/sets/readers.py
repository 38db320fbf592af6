"""Rows from the bytes of published files, one function for each format. Files of sets name them, with their options."""

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Row = dict[str, Any]
"""One line of a written file."""


def columns(
    content: bytes,
    *,
    text: int,
    label: int,
    labels: Mapping[str, str],
    pair: int | None = None,
    header: bool = True,
) -> Iterator[Row]:
    """Rows of lines with columns between tabs, without quotes. `labels`: what the file writes -> class name."""
    lines = content.decode("utf-8-sig").rstrip("\n").split("\n")
    for line in lines[header:]:
        cells = line.rstrip("\r").split("\t")
        row: Row = {"text": cells[text].strip()}
        if pair is not None:
            row["pair"] = cells[pair].strip()
        yield row | {"label": labels[cells[label].strip()]}


def label_then_text(
    content: bytes, *, labels: Mapping[str, str] | None = None, encoding: str = "utf-8", separator: str = " "
) -> Iterator[Row]:
    """Rows of lines that begin with a label. `labels`: what the file writes -> class name, where they differ. A line
    without a text is dropped."""
    for line in content.decode(encoding).rstrip("\n").split("\n"):
        label, _, text = line.partition(separator)
        if text.strip():
            yield {"text": text.strip(), "label": label if labels is None else labels[label]}


def question_kinds(content: bytes) -> Iterator[Row]:
    """Rows of TREC, lines such as `DESC:manner How did ...`: a question and its coarse kind."""
    for row in label_then_text(content, encoding="latin-1", separator=":"):
        yield row | {"text": row["text"].partition(" ")[2]}


def scored_pairs(content: bytes) -> Iterator[Row]:
    """Rows of a CSV file with two sentences and a score."""
    for first, second, score in csv.reader(io.StringIO(content.decode("utf-8"), newline="")):
        yield {"text": first, "pair": second, "label": float(score)}


def json_pairs(content: bytes) -> Iterator[Row]:
    """Rows of JSON Lines with `premise`, `hypothesis` and `label`, as SuperGLUE has them."""
    for line in content.decode("utf-8").splitlines():
        row = json.loads(line)
        yield {"text": row["premise"], "pair": row["hypothesis"], "label": row["label"]}


def boolean_questions(content: bytes) -> Iterator[Row]:
    """Rows of BoolQ from OLMo's requests: a passage and `Question: ...?` in one text, once for each of two answers."""
    numbers = set()
    for line in gzip.decompress(content).decode("utf-8").splitlines():
        document = json.loads(line)["doc"]
        if document["idx"] in numbers:
            continue
        numbers.add(document["idx"])
        passage, _, question = document["query"].removesuffix("\nAnswer:").rpartition("\nQuestion: ")
        yield {"text": question, "pair": passage, "label": document["choices"][document["gold"]]}


def requested_choices(content: bytes) -> Iterator[Row]:
    """Rows of a set of choices from OLMo's requests, one line for each choice, and each row twice. A question is in
    lines `Question: ...` and `Answer:`; PIQA's goal and SocialIQA's context and question have fields."""
    numbers: set[int] = set()
    lines = [json.loads(line) for line in gzip.decompress(content).decode("utf-8").splitlines()]
    rows = len({line["doc_id"] for line in lines}) // 2
    for line in lines:
        if line["doc_id"] in numbers or line["doc_id"] >= rows:
            continue
        numbers.add(line["doc_id"])
        document = line["doc"]
        row: Row = {"text": document["query"].removeprefix("Question: ").removesuffix("\nAnswer:").strip()}
        if "goal" in document:
            row = {"text": document["goal"].strip()}
        if "context" in document:
            row = {"text": document["context"].strip(), "question": document["question"].strip()}
        yield row | {"choices": [choice.strip() for choice in document["choices"]], "label": document["gold"]}


def filled_blanks(content: bytes) -> Iterator[Row]:
    """Rows of WinoGrande from OLMo's requests, one line for each choice: the sentence up to its blank, and each option
    with the rest. A sentence that begins with the blank is dropped."""
    numbers: set[int] = set()
    for line in gzip.decompress(content).decode("utf-8").splitlines():
        request = json.loads(line)
        document = request["doc"]
        before, _, after = document["sentence"].partition("_")
        if request["doc_id"] in numbers or not before.strip():
            continue
        numbers.add(request["doc_id"])
        choices = [f"{document[f'option{number}'].strip()}{after.rstrip()}" for number in (1, 2)]
        yield {"text": before.strip(), "choices": choices, "label": int(document["answer"]) - 1}


def causes_and_effects(content: bytes) -> Iterator[Row]:
    """Rows of COPA, JSON Lines as SuperGLUE has them."""
    questions = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}
    for line in content.decode("utf-8").splitlines():
        row = json.loads(line)
        yield {
            "text": row["premise"],
            "question": questions[row["question"]],
            "choices": [row["choice1"], row["choice2"]],
            "label": row["label"],
        }


def dialogue_questions(content: bytes) -> Iterator[Row]:
    """Rows of DREAM: dialogues, each with questions and choices."""
    for dialogue, questions, _ in json.loads(content):
        for one in questions:
            yield {
                "text": "\n".join(dialogue),
                "question": one["question"],
                "choices": one["choice"],
                "label": one["choice"].index(one["answer"]),
            }


def tagged_words(content: bytes, *, word: int = 0, tag: int = 1, separator: str | None = None) -> Iterator[Row]:
    """Rows of a word and its tag on each line, with a blank line after each sentence. `separator` None: white space.
    Lines that begin with `# ` before a sentence are comments; words that are split or inserted, with a number such as
    1-2 or 1.1 in a CoNLL-U file, are not counted."""
    words: list[str] = []
    tags: list[str] = []
    for line in (*content.decode("utf-8").split("\n"), ""):
        cells = line.rstrip("\r").split(separator)
        if not line.strip():
            if words:
                yield {"words": words, "tags": tags}
            words, tags = [], []
        elif not (word and (line.startswith("# ") or not cells[0].isdecimal())):
            words.append(cells[word].strip())
            tags.append(cells[tag].strip())


def squad(content: bytes) -> Iterator[Row]:
    """Rows of a SQuAD file, with the offset of each answer in its context. A wrong offset is replaced by that of the
    nearest place where the context has the answer."""
    for article in json.loads(content)["data"]:
        for paragraph in article["paragraphs"]:
            context: str = paragraph["context"]
            for question in paragraph["qas"]:
                texts, starts = [], []
                for answer in question["answers"]:
                    text, start = answer["text"], answer["answer_start"]
                    if not context.startswith(text, start):
                        text = text.strip()
                        _, start = min((abs(one - start), one) for one in _occurrences(text, context))
                    texts.append(text)
                    starts.append(start)
                yield {
                    "id": question["id"],
                    "question": question["question"],
                    "context": context,
                    "answers": {"text": texts, "start": starts},
                }


def _occurrences(text: str, context: str) -> list[int]:
    """Offsets of each occurrence."""
    starts = []
    start = context.find(text)
    while start >= 0:
        starts.append(start)
        start = context.find(text, start + 1)
    return starts


READERS: Mapping[str, Callable[..., Iterator[Row]]] = {
    reader.__name__: reader
    for reader in (
        *(columns, label_then_text, question_kinds, scored_pairs, json_pairs, boolean_questions),
        *(requested_choices, filled_blanks, causes_and_effects, dialogue_questions, tagged_words, squad),
    )
}
"""Readers by name. Each gives the rows of the bytes of one file."""
