"""Tasks that a file declares: its lines become documents by templates and expressions. See `task_file.py`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from pretrain.config.load import load
from pretrain.errors import ConfigError
from pretrain.evaluate.tasks.base import Choice, Examples, Format, Loaded, Sources, Task, TaskDocument
from pretrain.evaluate.tasks.jsonl import BadDocument, LinesOnDemand, documents
from pretrain.evaluate.tasks.task_file import TaskFile
from pretrain.evaluate.tasks.templates import BAD_FIELDS, Fields, expression, template

_MOST = 10_000  # documents of a line
_EXPRESSIONS = ("keep", "each", "choices", "right", "references")
_TEMPLATES = ("context", "target", "group", "zero_shot", "few_shot")


def declared(path: Path) -> Task:
    """The task of a file. Raises ConfigError for one that declares none."""
    said = load(TaskFile, path)
    made = _compiled(said, path)
    reader = _Reader(said, made)
    shots_file = said.shots_file
    return Task(
        name=said.name,
        load=partial(reader.read, said.file, "needs"),
        load_shots=partial(reader.examples, shots_file) if shots_file is not None else None,
        judged=(said.judged,),
        metric=said.metric,
        zero_shot=Format(said.instruction, _changed(made["zero_shot"]), said.separator),
        few_shot=Format(said.instruction, _changed(made["few_shot"]), said.separator),
        paper_shots=said.paper_shots,
        bare=said.bare,
        stops=tuple(said.stops),
        beam=said.beam,
        longest=said.longest,
        normalise=said.normalise,
        also=tuple(said.also),
        title=said.title,
        source=said.source,
        fetch=said.fetched(),
    )


def _compiled(said: TaskFile, path: Path) -> dict[str, Callable[[Fields], Any] | None]:
    """Its templates and expressions, by key. Raises ConfigError for one that Jinja can't read."""
    made: dict[str, Callable[[Fields], Any] | None] = {}
    for keys, make in ((_EXPRESSIONS, expression), (_TEMPLATES, template)):
        for key in keys:
            text = getattr(said, key)
            try:
                made[key] = None if text is None else make(text)
            except TemplateError as error:
                raise ConfigError(f"{path}: {key}: {error.message}") from None
    return made


def _changed(template: Callable[[Fields], str] | None) -> Callable[[TaskDocument], TaskDocument]:
    """Puts a template in the place of a document's context."""
    if template is None:
        return lambda document: document
    return lambda document: replace(document, context=template({"context": document.context}))


class _Reader:
    """Lines -> documents."""

    def __init__(self, said: TaskFile, made: dict[str, Callable[[Fields], Any] | None]) -> None:
        self._said, self._made = said, made

    def read(self, file: str, why: str, sources: Sources) -> Loaded:
        earlier: list[dict[str, Any]] = []  # lines about the same as the one that is read
        found, problems = documents(sources.find(self._said.name, file, why), partial(self._documents, earlier))
        if self._said.joined is not None:
            text = self._said.joined.join(document.target for document in found)
            found = [replace(found[0], target=text)]
        return Loaded(found, problems)

    def examples(self, file: str, sources: Sources) -> Examples:
        """Of a file to draw from: of many lines few may be shown, so where each is a document by itself, none is made
        before it is."""
        why, said = "shows examples from", self._said
        if said.each is not None or said.earlier is not None or said.keep is not None:
            return self.read(file, why, sources)
        return LinesOnDemand(sources.find(said.name, file, why), partial(self._documents, []), said.model_dump_json())

    def _documents(self, earlier: list[dict[str, Any]], line: dict[str, Any], where: str) -> list[TaskDocument]:
        about = self._said.earlier
        if about is not None and earlier and earlier[-1][about] != line.get(about):
            earlier.clear()
        try:
            found = [self._document(fields, where) for fields in self._parts({**line, "earlier": [*earlier]})]
        except BAD_FIELDS as error:
            said = isinstance(error, TemplateError | ValueError | TypeError)
            raise BadDocument(str(error) if said else f"{type(error).__name__}: {error}") from None
        if about is not None and found:
            earlier.append(line)
        return found

    def _parts(self, line: dict[str, Any]) -> list[Fields]:
        """The fields of each document of a line."""
        keep = self._value("keep", line, True)
        if not isinstance(keep, bool):
            raise BadDocument(f"whether to keep it is {keep!r:.60}, neither true nor false")
        if self._said.each is None:
            return [line] * keep
        count = self._value("each", line)
        if not isinstance(count, int) or not 0 < count <= _MOST:
            raise BadDocument(f"it holds {count!r:.60} documents")
        return [{**line, "number": number} for number in range(count * keep)]

    def _value(self, key: str, fields: Fields, absent: Any = None) -> Any:
        make = self._made[key]
        return absent if make is None else make(fields)

    def _document(self, fields: Fields, where: str) -> TaskDocument:
        said, group = self._said, self._value("group", fields, "")
        if said.choices is not None:
            return self._with_choices(fields, group, where)
        context = self._value("context", fields)
        references = _texts(self._value("references", fields, []))
        if said.references is not None and not references:
            raise BadDocument("it has no answer")
        target = references[0] if said.target is None else self._value("target", fields)
        if not target.strip():
            raise BadDocument("its answer is empty")
        delimiter = said.delimiter if said.judged != "perplexity" else ""
        return TaskDocument(context, delimiter + target, references=tuple(references), group=group, where=where)

    def _with_choices(self, fields: Fields, group: str, where: str) -> TaskDocument:
        values = self._value("choices", fields)
        if not isinstance(values, Sequence) or isinstance(values, str) or len(values) < 2:
            raise BadDocument(f"{values!r:.60} are not choices")
        choices = tuple(self._choice({**fields, "it": value}) for value in values)
        found = self._value("right", fields)
        right = tuple(found if isinstance(found, list | tuple) else [found])
        if not right or not all(type(number) is int and 0 <= number < len(choices) for number in right):
            raise BadDocument(f"the right one of its {len(choices)} choices is said to be {found!r:.60}")
        first = choices[right[0]]
        return TaskDocument(first.context, first.target, choices, right, group=group, where=where)

    def _choice(self, fields: Fields) -> Choice:
        target = fields["it"] if self._said.target is None else self._value("target", fields)
        if not isinstance(target, str) or not target.strip():
            raise BadDocument(f"{target!r:.60} is no choice in text")
        return Choice(self._value("context", fields), self._said.delimiter + target)


def _texts(values: Any) -> list[str]:
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) and value.strip() for value in values):
        raise BadDocument(f"{values!r:.60} is not a list of texts")
    return list(values)
