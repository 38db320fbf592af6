"""What a task file may say; docs/add-a-task.md shows it on examples."""

from pydantic import Field, model_validator

from pretrain.config.section import Section
from pretrain.evaluate.measures.names import NORMALISATIONS, TOGETHER_NAMES
from pretrain.evaluate.tasks.base import Fetched, Judged


class Fetch(Section):
    """Where on the Hugging Face hub the files of a task are."""

    dataset: str = Field(description="name of the dataset")
    config: str | None = Field(None, description="part of it; *: all parts, one after the other")
    file: str = Field(description="split of the questions")
    shots_file: str | None = Field(None, description="split of the examples")


class TaskFile(Section):
    """A template is text with `{{ field }}`, an expression names a field or makes something of fields."""

    name: str = Field(description="what --tasks calls it")
    title: str = Field(description="what the report calls it")
    source: str = Field(description="the paper, and what is worth knowing of the data")
    file: str = Field(description="JSON lines of the questions")
    shots_file: str | None = Field(None, description="JSON lines that examples are drawn from; absent: the questions'")
    fetch: Fetch | None = Field(None, description="where `eval fetch` gets them")
    keep: str | None = Field(None, description="expression: whether a line is a document; absent: it is")
    each: str | None = Field(None, description="expression: how many documents a line holds; `number` counts, from 0")
    earlier: str | None = Field(None, description="field: the lines just before with the same in it are `earlier`")
    joined: str | None = Field(None, description="what all lines are joined by, to be one text")
    judged: Judged = Field(description="choice, text, target or perplexity")
    context: str = Field("", description="template: what comes before the answer; of choices, `it` is one")
    choices: str | None = Field(None, description="expression of a list: what is chosen from")
    target: str | None = Field(None, description="template: the answer; of choices, `it` is one")
    right: str | None = Field(None, description="expression: number, or numbers, from 0, of the choices that are right")
    references: str | None = Field(None, description="expression of a list: answers in text, any of which is right")
    group: str | None = Field(None, description="template: documents with the same in it are judged together")
    delimiter: str = Field(" ", description="between context and answer")
    instruction: str = Field("", description="before the first example, or the question")
    separator: str = Field("\n\n", description="between examples")
    zero_shot: str | None = Field(None, description="template: what becomes of `context` without examples")
    few_shot: str | None = Field(None, description="template: what becomes of `context` with examples")
    metric: str = Field(description="what the report shows first")
    paper_shots: int | None = Field(None, ge=0, description="K of GPT-3's few-shot setting")
    bare: str | None = Field(None, description="context for a choice's probability without the question")
    stops: list[str] = Field(["\n"], description="where an answer in text ends")
    beam: bool = Field(False, description="GPT-3 searched with a beam")
    longest: int | None = Field(None, gt=0, description="tokens of an answer in text")
    normalise: str = Field("strip", description="what of an answer in text counts: strip or answer")
    also: list[str] = Field([], description="metrics of several documents together")

    @model_validator(mode="after")
    def _whole(self) -> "TaskFile":
        needs = {"choice": ("choices", "right"), "text": ("references",)}
        for key in needs.get(self.judged, ("target",)):
            if getattr(self, key) is None:
                raise ValueError(f"a task judged by {self.judged} needs `{key}`")
        only = {"choices": "choice", "right": "choice", "bare": "choice", "joined": "perplexity"}
        for key, judged in only.items():
            if getattr(self, key) is not None and self.judged != judged:
                raise ValueError(f"`{key}` is for tasks judged by {judged}, not by {self.judged}")
        if self.judged == "choice" and (self.zero_shot is not None or self.few_shot is not None):
            raise ValueError("`zero_shot` and `few_shot` are not for tasks judged by choice: say it in `context`")
        for name, known in ((self.normalise, NORMALISATIONS), *((name, TOGETHER_NAMES) for name in self.also)):
            if name not in known:
                raise ValueError(f"'{name}' is none of {', '.join(known)}")
        return self

    def fetched(self) -> tuple[Fetched, ...]:
        """Its files, and the splits that they come from."""
        if self.fetch is None:
            return ()
        names = ((self.file, self.fetch.file), (self.shots_file, self.fetch.shots_file))
        return tuple(
            Fetched(file, self.fetch.dataset, self.fetch.config, split)
            for file, split in names
            if file is not None and split is not None
        )
