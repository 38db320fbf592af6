"""Files of github.com/openai/gpt-3, data/: lines of a `context` and its `completion`, exactly as in a prompt."""

from typing import Any

from pretrain.evaluate.tasks.base import Loaded, Sources, TaskDocument
from pretrain.evaluate.tasks.jsonl import BadDocument, documents, text_of

SOURCE = "Brown et al. 2020 (arXiv 2005.14165); the files are in github.com/openai/gpt-3, data/"


def openai_file(task: str, file: str, sources: Sources) -> Loaded:
    """The documents of one of them."""
    return Loaded(*documents(sources.find(task, file), _document))


def _document(line: dict[str, Any], where: str) -> list[TaskDocument]:
    document = TaskDocument(text_of(line, "context"), text_of(line, "completion"), where=where)
    if not document.target.strip():
        raise BadDocument("its 'completion' is empty")
    return [document]
