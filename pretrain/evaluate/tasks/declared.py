"""Tasks that a file declares: which fields of a line make the prompt, what is chosen from, what is right.

`context`, `target` and entries of a list of `choices` are Jinja templates of the line's fields; `right`, `references`,
`contexts`, `keep` and a `choices` that is no list are Jinja expressions. They run in Jinja's sandbox: a task file is
data. docs/add-a-task.md has examples; the files of this folder are all that there is of most tasks.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment
from pydantic import Field, model_validator

from pretrain.config.load import load
from pretrain.config.section import Section
from pretrain.evaluate.measures.names import NORMALISATIONS, TOGETHER_NAMES
from pretrain.evaluate.tasks.base import Choice, Format, Judged, Loaded, Sources, Task, TaskDocument
from pretrain.evaluate.tasks.filters import FILTERS
from pretrain.evaluate.tasks.jsonl import BadDocument, documents
from pretrain.evaluate.tasks.unfold import UNFOLD


class TaskFile(Section):
    """What a file may say."""

    name: str = Field(description="what --tasks calls it")
    title: str = Field(description="what the report calls it")
    source: str = Field(description="the paper, and where its data is from")
    file: str = Field(description="JSON lines of the questions")
    shots_file: str | None = Field(None, description="JSON lines that examples are drawn from; absent: the questions'")
    fetch: dict[str, str] = Field({}, description="where `eval fetch` gets them")
    unfold: str | None = Field(None, description="what makes several documents of a line")
    keep: str = Field("true", description="expression: whether a line is a document of the task")
    judged: Judged = Field(description="choice, text, target or perplexity")
    context: str = Field("", description="template: what comes before the answer")
    contexts: str | None = Field(None, description="expression: a context for each choice, instead")
    target: str | None = Field(None, description="template: the answer, with the space before it")
    choices: str | list[str] | None = Field(None, description="expression of a list, or templates, of answers")
    right: str | None = Field(None, description="expression: number, or numbers, of the choices that are right")
    references: str | None = Field(None, description="expression of a list: answers in text, any of which is right")
    group: str = Field("", description="template: documents with the same are judged together")
    delimiter: str = Field(" ", description="between a context and a choice or reference")
    instruction: str = Field("", description="before the examples")
    separator: str = Field("\n\n", description="between examples")
    metric: str = Field(description="what the report shows first")
    paper_shots: int | None = Field(None, ge=0, description="K of GPT-3's few-shot setting")
    bare: str | None = Field(None, description="context for a choice's probability without the question")
    stops: list[str] = Field(["\n"], description="where an answer in text ends")
    beam: bool = Field(False, description="GPT-3 searched with a beam")
    longest: int | None = Field(None, gt=0, description="tokens of an answer in text")
    normalise: str = Field("strip", description="what of an answer in text counts")
    also: list[str] = Field([], description="further metrics")

    @model_validator(mode="after")
    def _whole(self) -> "TaskFile":
        needs = {"choice": ("choices", "right"), "text": ("references",), "target": ("target",)}
        for key in needs.get(self.judged, ("target",)):
            if getattr(self, key) is None:
                raise ValueError(f"a task judged by {self.judged} needs `{key}`")
        for name, known in ((self.normalise, NORMALISATIONS), *((name, TOGETHER_NAMES) for name in self.also)):
            if name not in known:
                raise ValueError(f"'{name}' is none of {', '.join(known)}")
        if self.unfold is not None and self.unfold not in UNFOLD:
            raise ValueError(f"unfold: '{self.unfold}' is none of {', '.join(UNFOLD)}")
        return self


def declared(path: Path) -> Task:
    """The task of a file. Raises ConfigError for one that declares none."""
    said = load(TaskFile, path)
    reader = _Reader(said)
    form = Format(said.instruction, separator=said.separator)
    shots_file = said.shots_file
    return Task(
        name=said.name,
        load=partial(reader.read, said.file, "needs"),
        load_shots=partial(reader.read, shots_file, "shows examples from") if shots_file is not None else None,
        judged=(said.judged,),
        metric=said.metric,
        zero_shot=form,
        few_shot=form,
        paper_shots=said.paper_shots,
        bare=said.bare,
        stops=tuple(said.stops),
        beam=said.beam,
        longest=said.longest,
        normalise=said.normalise,
        also=tuple(said.also),
        title=said.title,
        source=said.source,
        fetch=said.fetch,
    )


class _Reader:
    """Lines -> documents."""

    def __init__(self, said: TaskFile) -> None:
        self._said = said
        environment = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
        environment.filters |= FILTERS
        self._context, self._group = environment.from_string(said.context), environment.from_string(said.group)
        self._target = environment.from_string(said.target) if said.target is not None else None
        self._keep, self._contexts, self._right, self._references = (
            None if text is None else _expression(environment, text)
            for text in (said.keep, said.contexts, said.right, said.references)
        )
        self._choices: Callable[..., Any] | None = None
        if isinstance(said.choices, str):
            self._choices = _expression(environment, said.choices)
        elif said.choices is not None:
            templates = [environment.from_string(text) for text in said.choices]
            self._choices = lambda **fields: [template.render(**fields) for template in templates]

    def read(self, file: str, why: str, sources: Sources) -> Loaded:
        return Loaded(*documents(sources.find(self._said.name, file, why), self._documents))

    def _documents(self, line: dict[str, Any], where: str) -> list[TaskDocument]:
        try:
            parts = UNFOLD[self._said.unfold](line) if self._said.unfold is not None else [line]
            return [self._document(fields, where) for fields in parts if self._keep is None or self._keep(**fields)]
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise BadDocument(f"{type(error).__name__}: {error}") from None

    def _document(self, fields: dict[str, Any], where: str) -> TaskDocument:
        context, group = self._context.render(**fields), self._group.render(**fields)
        if self._choices is not None:
            return self._with_choices(fields, context, group, where)
        references = self._texts(self._references(**fields)) if self._references is not None else []
        if self._references is not None and not references:
            raise BadDocument("it has no answer")
        target = self._target.render(**fields) if self._target is not None else self._said.delimiter + references[0]
        return TaskDocument(context, target, references=tuple(references), group=group, where=where)

    def _with_choices(self, fields: dict[str, Any], context: str, group: str, where: str) -> TaskDocument:
        assert self._choices is not None
        assert self._right is not None
        texts = self._texts(self._choices(**fields))
        contexts = self._texts(self._contexts(**fields)) if self._contexts is not None else [context] * len(texts)
        found = self._right(**fields)
        right = tuple(
            int(number) for number in (found if isinstance(found, Sequence) and not isinstance(found, str) else [found])
        )
        if len(texts) < 2 or len(contexts) != len(texts):
            raise BadDocument(f"it has {len(texts)} choices and {len(contexts)} contexts for them")
        if not right or not all(0 <= number < len(texts) for number in right):
            raise BadDocument(f"the right one of its {len(texts)} choices is said to be {found!r}")
        choices = [Choice(c, self._said.delimiter + text) for c, text in zip(contexts, texts, strict=True)]
        first = choices[right[0]]
        return TaskDocument(first.context, first.target, tuple(choices), right, group=group, where=where)

    @staticmethod
    def _texts(values: Any) -> list[str]:
        if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(v, str) for v in values):
            raise BadDocument(f"{values!r:.60} is not a list of texts")
        if any(not value.strip() for value in values):
            raise BadDocument("one of its answers is empty")
        return list(values)


def _expression(environment: SandboxedEnvironment, text: str) -> Callable[..., Any]:
    return environment.compile_expression(text, undefined_to_none=False)
