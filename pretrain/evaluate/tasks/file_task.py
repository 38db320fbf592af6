"""Tasks that a file declares: lines become documents by its templates. See `task_file.py`."""

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.base import GREEDY, Beam, Decoding
from pretrain.evaluate.tasks.base import Continuation, Examples, Fetched, Format, Loaded, Sources, Task, TaskDocument
from pretrain.evaluate.tasks.jsonl import BadDocument, LinesOnDemand, documents
from pretrain.evaluate.tasks.metric_names import METRIC_NAMES
from pretrain.evaluate.tasks.normalization import (
    NORMALIZATIONS,
    RESPONSE_FILTERS,
    exact_match,
    for_every_script,
    regex_filter,
)
from pretrain.evaluate.tasks.task_file import GenerationKwargs, MetricEntry, TaskFile, read_task_file
from pretrain.evaluate.tasks.templates import BAD_FIELDS, Fields, kind_of, template, value_template

_MOST = 10_000  # documents of a line

Templates = dict[str, Callable[[Fields], Any] | None]
"""Compiled templates, by key; None: the file does not have it."""


def task_from_file(path: Path) -> Task:
    """The task that a file declares. Raises ConfigError for a file that declares none, or asks for something that is
    not supported."""
    file = read_task_file(path)
    extra, templates = file.metadata.pretrain, _compiled(file, path)
    reader, generation = _Reader(file, templates), file.generation_kwargs or GenerationKwargs()
    questions, examples = file.questions_split, file.examples_split
    assert questions is not None, "a task file is validated"
    until = generation.until if generation.until is not None else file.fewshot_delimiter
    unconditional = extra.unconditional_context
    if unconditional is None and "acc_mutual_info" in file.metric_names:
        unconditional = ""
    # lm-eval puts the delimiter of a log-likelihood's target between context and target of examples alone.
    delimiter = file.target_delimiter if file.output_type == "loglikelihood" else ""
    forms = [
        Format(file.description, _over_context(templates[f"{shots}_template"]), file.fewshot_delimiter, delimiter)
        for shots in ("zero_shot", "few_shot")
    ]
    return Task(
        name=file.task,
        load=partial(reader.read, file.file_of(questions), "needs"),
        load_shots=None if examples is None else partial(reader.examples, file.file_of(examples)),
        output_types=(file.output_type,),
        metrics=tuple(METRIC_NAMES[file.output_type][name] for name in file.metric_names),
        zero_shot=forms[0],
        few_shot=forms[1],
        paper_shots=extra.paper_shots,
        num_fewshot=file.num_fewshot,
        unconditional_context=unconditional,
        until=(until,) if isinstance(until, str) else tuple(until),
        decoding=_decoding(generation),
        max_gen_toks=generation.max_gen_toks,
        response_filters=_response_filters(file),
        normalize=_normalization(file),
        every_script=_every_script(file),
        one_form=extra.one_form,
        unicode_words=extra.words == "unicode",
        bleu_tokenize=extra.bleu_tokenize,
        title=file.task_alias or file.task,
        source=extra.source,
        fetch=_fetched(file),
    )


def _compiled(file: TaskFile, path: Path) -> Templates:
    """Compiled templates of a file. Raises ConfigError for a template that Jinja can't read."""
    extra = file.metadata.pretrain
    over_context = {"zero_shot_template": extra.zero_shot_template, "few_shot_template": extra.few_shot_template}
    over_fields = {
        "doc_to_text": file.doc_to_text,
        "doc_to_target": file.doc_to_target,
        "doc_to_choice": file.doc_to_choice,
        **{key: getattr(extra, key) for key in ("doc_to_group", "doc_to_original", "keep_if", "docs_per_line")},
    }
    made: Templates = {}
    for key, value in (over_fields | over_context).items():
        try:
            with_choices = file.doc_to_choice is not None
            made[key] = (
                None if value is None else template(value) if key in over_context else _maker(key, value, with_choices)
            )
        except TemplateError as error:
            raise ConfigError(f"{path}: {key}: {error.message}") from None
    return made


def _maker(key: str, value: Any, with_choices: bool) -> Callable[[Fields], Any]:
    """Fields -> the value of a key, read as lm-eval reads it: a field as it is; digits as a number where there are
    choices; a list that a text writes out as a list."""
    if not isinstance(value, str):
        constant = list(value.values()) if isinstance(value, dict) else value
        return lambda fields: constant
    text = value.strip() if key == "doc_to_choice" else value
    make, kind = value_template(text), kind_of(text)
    if with_choices and key in ("doc_to_text", "doc_to_target") and kind != "field":
        return lambda fields: _number(make(fields))
    if key in ("doc_to_choice", "doc_to_target") and kind == "text":
        return lambda fields: _listed(make(fields))
    return make


def _over_context(template: Callable[[Fields], str] | None) -> Callable[[TaskDocument], TaskDocument]:
    """Replaces a document's context by what a template makes of it."""
    if template is None:
        return lambda document: document
    return lambda document: replace(document, context=template({"context": document.context}))


def _decoding(generation: GenerationKwargs) -> Decoding:
    return GREEDY if generation.num_beams == 1 else Beam(generation.num_beams, generation.length_penalty)


def _response_filters(file: TaskFile) -> tuple[Callable[[str], str], ...]:
    steps = file.filter_list[0].filter if file.filter_list else []
    steps = [step for step in steps if step.function != "take_first"]  # there is one answer
    try:
        return tuple(
            regex_filter(step.regex_pattern, step.group_select, step.fallback)
            if step.function == "regex"
            else RESPONSE_FILTERS[step.function]
            for step in steps
        )
    except re.error as error:
        raise ConfigError(f"task {file.task}: filter_list: regex_pattern is no regular expression ({error})") from None


def _normalization(file: TaskFile) -> Callable[[str], str]:
    if (name := file.metadata.pretrain.normalization) is not None:
        return NORMALIZATIONS[name]
    entry = _exact_match_entry(file)
    if entry is None or not (
        entry.regexes_to_ignore or entry.ignore_case or entry.ignore_punctuation or entry.ignore_numbers
    ):
        return str.strip
    try:
        [re.compile(pattern) for pattern in entry.regexes_to_ignore]
    except re.error as error:
        raise ConfigError(f"task {file.task}: regexes_to_ignore holds no regular expression ({error})") from None
    return exact_match(
        regexes_to_ignore=entry.regexes_to_ignore,
        ignore_case=entry.ignore_case,
        ignore_punctuation=entry.ignore_punctuation,
        ignore_numbers=entry.ignore_numbers,
    )


def _exact_match_entry(file: TaskFile) -> MetricEntry | None:
    return next((entry for entry in file.metric_list or [] if entry.metric == "exact_match"), None)


def _every_script(file: TaskFile) -> Callable[[str], str]:
    """See `Task.every_script`."""
    name, entry = file.metadata.pretrain.normalization, _exact_match_entry(file)
    if name is not None and name.startswith("unicode"):
        return NORMALIZATIONS[name]
    return for_every_script(
        _normalization(file),
        punctuation=name is not None or (entry is not None and entry.ignore_punctuation),
        case=name is not None or (entry is not None and entry.ignore_case),
    )


def _fetched(file: TaskFile) -> tuple[Fetched, ...]:
    """Files, and the splits of the dataset that they come from."""
    if file.dataset_path == "json":
        return ()
    splits = [split for split in (file.questions_split, file.examples_split) if split is not None]
    if file.output_type == "loglikelihood_rolling":  # shows no examples
        splits = splits[:1]
    return tuple(Fetched(file.file_of(split), file.dataset_path, file.dataset_name, split) for split in splits)


class _Reader:
    """Lines -> documents."""

    def __init__(self, file: TaskFile, templates: Templates) -> None:
        self._task, self._templates = file, templates
        self._extra = file.metadata.pretrain

    def read(self, file: str, why: str, sources: Sources) -> Loaded:
        """All documents of a file."""
        previous: list[dict[str, Any]] = []  # lines with the same value as the one that is read
        task_documents, problems = documents(self._find(file, why, sources), partial(self._documents, previous))
        if self._extra.join_docs is not None:
            text = self._extra.join_docs.join(document.target for document in task_documents)
            task_documents = [replace(task_documents[0], target=text)]
        return Loaded(task_documents, problems)

    def examples(self, file: str, sources: Sources) -> Examples:
        """Documents of a file to draw examples from. Of many lines few may be shown, so where each line is one
        document by itself, a document is made when it is drawn."""
        why, extra = "shows examples from", self._extra
        if any(key is not None for key in (extra.docs_per_line, extra.previous_with_same, extra.keep_if)):
            return self.read(file, why, sources)
        about = self._task.model_dump_json()
        return LinesOnDemand(self._find(file, why, sources), partial(self._documents, []), about)

    def _find(self, file: str, why: str, sources: Sources) -> Path:
        path = Path(file).expanduser()
        if self._task.dataset_path == "json" and path.is_file():
            return path
        own = self._task.dataset_path == "json"
        return sources.find(self._task.task, path.name, why, self._extra.source if own else "")

    def _documents(self, previous: list[dict[str, Any]], line: dict[str, Any], where: str) -> list[TaskDocument]:
        same = self._extra.previous_with_same
        if same is not None and previous and previous[-1][same] != line.get(same):
            previous.clear()
        try:
            task_documents = [
                self._document(fields, where)
                for fields in self._split(line if same is None else {**line, "previous": [*previous]})
            ]
        except BAD_FIELDS as error:
            readable = isinstance(error, TemplateError | ValueError | TypeError)
            raise BadDocument(str(error) if readable else f"{type(error).__name__}: {error}") from None
        if same is not None and task_documents:
            previous.append(line)
        return task_documents

    def _split(self, line: dict[str, Any]) -> list[Fields]:
        """The fields of each document of a line."""
        keep = self._value("keep_if", line, True)
        if not isinstance(keep, bool):
            raise BadDocument(f"keep_if is {keep!r:.60}, neither true nor false")
        if self._extra.docs_per_line is None:
            return [line] * keep
        count = self._value("docs_per_line", line)
        if type(count) is not int or not 0 < count <= _MOST:
            raise BadDocument(f"docs_per_line is {count!r:.60}")
        return [{**line, "index": index} for index in range(count * keep)]

    def _value(self, key: str, fields: Fields, absent: Any = None) -> Any:
        make = self._templates[key]
        return absent if make is None else make(fields)

    def _text(self, key: str, fields: Fields) -> str:
        value = self._value(key, fields, "")
        if not isinstance(value, str):
            raise BadDocument(f"{key} is {value!r:.60}, not text but {type(value).__name__}")
        return value

    def _document(self, fields: Fields, where: str) -> TaskDocument:
        kind, group = self._task.output_type, self._text("doc_to_group", fields)
        if kind == "multiple_choice":
            return self._with_choices(fields, group, where)
        context, original = self._text("doc_to_text", fields), self._text("doc_to_original", fields)
        if kind == "generate_until":
            references = _texts(self._value("doc_to_target", fields))
            target = self._task.target_delimiter + references[0]
        else:
            target = self._text("doc_to_target", fields)
            references, original = [original] * (self._templates["doc_to_original"] is not None), ""
        if not target.strip():
            raise BadDocument("its answer is empty")
        return TaskDocument(context, target, references=tuple(references), original=original, group=group, where=where)

    def _with_choices(self, fields: Fields, group: str, where: str) -> TaskDocument:
        texts = self._value("doc_to_choice", fields)
        if not isinstance(texts, list | tuple) or len(texts) < 2:
            raise BadDocument(f"doc_to_choice is {texts!r:.60}, not a list of choices")
        for text in texts:
            if not isinstance(text, str) or not text.strip():
                raise BadDocument(f"doc_to_choice has {text!r:.60}, which is no choice in text")
        delimiter, text = self._task.target_delimiter, self._value("doc_to_text", fields)
        if isinstance(text, str):
            choices = tuple(Continuation(text, delimiter + choice) for choice in texts)
            right = _right(self._value("doc_to_target", fields), texts)
        elif type(text) is int:  # contexts to choose from, and what follows each
            target = self._text("doc_to_target", fields)
            if not target.strip():
                raise BadDocument("its answer is empty")
            choices = tuple(Continuation(context, delimiter + target) for context in texts)
            right = [text]
        else:
            raise BadDocument(f"doc_to_text is {text!r:.60}, not text but {type(text).__name__}")
        if not right or not all(type(number) is int and 0 <= number < len(choices) for number in right):
            raise BadDocument(f"the right one of its {len(choices)} choices is {right!r:.60}")
        first = choices[right[0]]
        return TaskDocument(first.context, first.target, choices, tuple(right), group=group, where=where)


def _number(value: Any) -> Any:
    """A number that is written in digits, as lm-eval reads it where there are choices; anything else as it is."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _listed(value: Any) -> Any:
    """A list that is written out, as lm-eval reads it; anything else as it is."""
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        try:
            return ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return value
    return value


def _right(value: Any, choices: Sequence[str]) -> Sequence[Any]:
    """Numbers of the right choices: numbers as they are, and the text of a choice."""
    if isinstance(value, str) and value in choices:
        value = choices.index(value)
    return value if isinstance(value, list | tuple) else [value]


def _texts(value: Any) -> list[str]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple) or not all(isinstance(one, str) and one.strip() for one in values):
        raise BadDocument(f"doc_to_target is {value!r:.60}, not an answer in text")
    if not values:
        raise BadDocument("it has no answer")
    return list(values)
