"""The keys of a task file: lm-eval's, and under `metadata.pretrain` those that lm-eval has none for. See
docs/add-a-task.md."""

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from pretrain.config.evaluate import BleuTokenize, Normalization, Words
from pretrain.config.load import validate
from pretrain.config.section import Section
from pretrain.config.yaml_text import parse, read_text
from pretrain.errors import ConfigError
from pretrain.evaluate.tasks.metric_names import (
    AGGREGATIONS,
    DEFAULT_METRICS,
    HIGHER_IS_WORSE,
    MAX_GEN_TOKS,
    METRIC_NAMES,
    ROUGE_METRIC_NAMES,
    OutputType,
)
from pretrain.evaluate.tasks.normalization import RESPONSE_FILTERS

_FUNCTION = re.compile(r"^\s*(?:-\s+)?(\w+):\s*!function\s+(\S+)", re.MULTILINE)
_UNSUPPORTED = {
    "process_docs": "write templates that make the text of the fields as they are",
    "process_results": "choose metrics with metric_list",
    "custom_dataset": "name a dataset, or write JSON lines (dataset_path: json)",
    "class": "a task written in Python is no task file",
    "doc_to_image": "models read text",
    "doc_to_audio": "models read text",
    "use_prompt": "write the prompt in doc_to_text",
    "gen_prefix": "write it at the end of doc_to_text",
    "group": "name the tasks of the group with --tasks",
    "group_alias": "name the tasks of the group with --tasks",
    "aggregate_metric_list": "name the tasks of the group with --tasks",
    "task_list": "write a file for each task",
}
"""Keys of lm-eval that ask for something else than a file can say here, and what to do."""
_MOST_INCLUDES = 20


class MetricEntry(Section):
    """An entry of `metric_list`."""

    metric: str = Field(description="name of the metric; the report shows the first one's scores in its tables")
    aggregation: str | None = Field(None, description="how lm-eval aggregates the metric over documents; no other way")
    higher_is_better: bool | None = Field(None, description="whether a higher value is better; checked, no setting")
    ignore_case: bool = Field(False, description="exact_match: compare in lower case")
    ignore_punctuation: bool = Field(False, description="exact_match: remove ASCII punctuation")
    ignore_numbers: bool = Field(False, description="exact_match: remove ASCII digits")
    regexes_to_ignore: list[str] = Field([], description="exact_match: remove what these regular expressions match")

    @model_validator(mode="after")
    def _is_lm_evals(self) -> "MetricEntry":
        way = AGGREGATIONS.get(self.metric)
        if way is not None and self.aggregation not in (None, way):
            raise ValueError(
                f"metric_list: metric {self.metric} is aggregated by {way}, not by {self.aggregation}: leave it out"
            )
        if self.higher_is_better not in (None, self.metric not in HIGHER_IS_WORSE):
            raise ValueError(f"metric_list: higher_is_better is {not self.higher_is_better} of metric {self.metric}")
        return self


class ResponseFilter(Section):
    """A step of a filter."""

    function: str = Field(description=f"{', '.join(RESPONSE_FILTERS)} or regex")
    regex_pattern: str = Field(r"#### (\-?[0-9\.\,]+)", description="regex: what to look for")
    group_select: int = Field(0, description="regex: number of the match")
    fallback: str = Field("[invalid]", description="regex: answer where nothing matches")

    @model_validator(mode="after")
    def _is_known(self) -> "ResponseFilter":
        if self.function not in (*RESPONSE_FILTERS, "regex"):
            raise ValueError(
                f"filter_list: filter {self.function} is not supported: {', '.join(RESPONSE_FILTERS)} and regex are"
            )
        return self


class FilterPipeline(Section):
    """An entry of `filter_list`."""

    name: str = Field("none", description="name of the pipeline, for readers")
    filter: list[ResponseFilter] = Field(description="steps, in their order")


class GenerationKwargs(Section):
    """Settings of generation."""

    until: list[str] | str | None = Field(None, description="strings that end an answer (default: fewshot_delimiter)")
    max_gen_toks: int = Field(
        MAX_GEN_TOKS, gt=0, description="most tokens of an answer; at most half of the model's positions"
    )
    do_sample: Literal[False] = Field(False, description="false: answers are not sampled, unless the command says so")
    temperature: float = Field(0.0, ge=0, le=0, description="0, as answers are not sampled")
    num_beams: int = Field(1, gt=0, description="hypotheses of beam search; 1 is greedy decoding")
    length_penalty: float = Field(0.6, ge=0, description="exponent of GNMT's length penalty, with num_beams above 1")


class FewshotConfig(Section):
    """Settings of examples."""

    sampler: Literal["default"] = Field("default", description="default: examples are drawn by the seed")
    split: str | None = Field(None, description="split that examples are drawn from, before fewshot_split")


class DatasetKwargs(Section):
    """Settings of `dataset_path: json`."""

    data_files: dict[str, str] = Field(description="split -> file of JSON lines, its path or its name below --data")


class PretrainKeys(Section):
    """Keys that lm-eval does not have. Values that start with `doc_to_` are templates as lm-eval's are."""

    source: str = Field("", description="paper, and what is worth knowing of the data")
    files: dict[str, str] = Field({}, description="split -> file name below --data (default: TASK_SPLIT.jsonl)")
    paper_shots: int | None = Field(None, ge=0, description="K of GPT-3's few-shot setting")
    unconditional_context: str | None = Field(
        None, description="acc_mutual_info: context of a choice's probability without the question (default: none)"
    )
    normalization: Normalization | None = Field(
        None,
        description="squad: compare answers as SQuAD's evaluation (lower case, no punctuation, no articles); unicode: "
        "words of every language; unicode_tr: the same with Turkish case; mlqa_LANGUAGE: MLQA's evaluation",
    )
    one_form: bool = Field(
        False,
        description="before filters, answers and references are NFC, and full-width letters and digits of every script "
        "are ASCII",
    )
    words: Words = Field(
        "default",
        description="unicode: f1, gleu and ROUGE count words of every language; default: what white space separates, "
        "and for ROUGE rouge-score's stemmed English words",
    )
    bleu_tokenize: BleuTokenize = Field(
        "13a", description="bleu: sacrebleu's tokenizer, such as zh, ja-mecab, ko-mecab, char, flores200"
    )
    zero_shot_template: str | None = Field(None, description="template over `context`, for prompts without examples")
    few_shot_template: str | None = Field(None, description="template over `context`, for prompts with examples")
    doc_to_group: str | None = Field(None, description="template of the group that group metrics put a document in")
    doc_to_original: str | None = Field(
        None, description="template of the text whose words and bytes are counted, or that an answer corrects (gleu)"
    )
    keep_if: str | None = Field(None, description="template of true or false: whether a line is used")
    docs_per_line: str | None = Field(
        None, description="template of a number: documents of a line, of which `index` counts from 0"
    )
    previous_with_same: str | None = Field(
        None, description="field: the lines just before with the same value are `previous` in templates"
    )
    join_docs: str | None = Field(None, description="join the texts of all lines with this, as one document")


class Metadata(Section):
    """Anything; only `pretrain` is read."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    pretrain: PretrainKeys = PretrainKeys()


class TaskFile(Section):
    """A task as lm-eval declares it. A template is the name of a field, or text with `{{ expressions }}`."""

    task: str = Field(description="name of the task")
    task_alias: str | None = Field(None, description="title in the report (default: task)")
    tag: str | list[str] | None = Field(None, description="lm-eval's tags; accepted, without effect")
    dataset_path: str = Field(description="dataset on the Hugging Face hub, or `json` for files of JSON lines")
    dataset_name: str | None = Field(
        None, description="configuration of the dataset; `*` reads all, one after the other"
    )
    dataset_kwargs: DatasetKwargs | None = Field(None)
    training_split: str | None = Field(None, description="split that examples are drawn from, if no other is named")
    validation_split: str | None = Field(None, description="split of the questions where there is no test_split")
    test_split: str | None = Field(None, description="split of the questions")
    fewshot_split: str | None = Field(None, description="split that examples are drawn from")
    fewshot_config: FewshotConfig = FewshotConfig()
    output_type: OutputType = Field("generate_until", description="what the model is asked for")
    doc_to_text: str | int = Field("", description="template of the context; of a number where contexts are choices")
    doc_to_choice: str | list[str] | dict[str, str] | None = Field(None, description="template of the list of choices")
    doc_to_target: str | int | list[str] = Field(
        description="template of the answer: a text, texts that are all right, or the number of a choice"
    )
    description: str = Field("", description="text before the examples")
    target_delimiter: str = Field(" ", description="text between context and answer")
    fewshot_delimiter: str = Field("\n\n", description="text after every example")
    num_fewshot: int | None = Field(None, ge=0, description="number of examples where --shots is not given")
    metric_list: list[MetricEntry] | None = Field(None, description="metrics")
    generation_kwargs: GenerationKwargs | None = Field(None)
    filter_list: list[FilterPipeline] | None = Field(None, max_length=1, description="one pipeline")
    repeats: Literal[1] = Field(1, description="answers to each question")
    unsafe_code: Literal[False] = Field(False, description="false: no task runs code")
    should_decontaminate: bool = Field(
        False, description="accepted, without effect: `pretrain eval --overlap` looks for all documents"
    )
    doc_to_decontamination_query: str | None = Field(None, description="accepted, without effect")
    metadata: Metadata = Metadata()

    @model_validator(mode="before")
    @classmethod
    def _only_supported(cls, values: Any) -> Any:
        """Refuses what lm-eval has and task files here don't; null is lm-eval's default of any key."""
        if not isinstance(values, dict):
            return values
        for key, advice in _UNSUPPORTED.items():
            if values.get(key) is not None:
                raise ValueError(f"`{key}` is a key of lm-eval that is not supported here: {advice}")
        return {key: value for key, value in values.items() if value is not None and key not in _UNSUPPORTED}

    @model_validator(mode="after")
    def _goes_together(self) -> "TaskFile":
        extra, kind = self.metadata.pretrain, self.output_type
        if self.questions_split is None:
            raise ValueError("name the split of the questions: `test_split` or `validation_split`")
        if (self.dataset_path == "json") != (self.dataset_kwargs is not None):
            raise ValueError("`dataset_kwargs.data_files` goes with `dataset_path: json`, and with no other")
        only: dict[str, tuple[Any, OutputType]] = {
            "doc_to_choice": (self.doc_to_choice, "multiple_choice"),
            "generation_kwargs": (self.generation_kwargs, "generate_until"),
            "filter_list": (self.filter_list, "generate_until"),
            "metadata.pretrain.unconditional_context": (extra.unconditional_context, "multiple_choice"),
            "metadata.pretrain.normalization": (extra.normalization, "generate_until"),
            "metadata.pretrain.join_docs": (extra.join_docs, "loglikelihood_rolling"),
        }
        for key, (value, its_kind) in only.items():
            if value is not None and kind != its_kind:
                raise ValueError(f"`{key}` is for output_type {its_kind}, not for {kind}")
        for key, used in (
            ("one_form", not {"exact_match", "f1"}.isdisjoint(self.metric_names)),
            ("words", not {"f1", "gleu", *ROUGE_METRIC_NAMES}.isdisjoint(self.metric_names)),
            ("bleu_tokenize", "bleu" in self.metric_names),
        ):
            is_set = getattr(extra, key) != PretrainKeys.model_fields[key].default
            if is_set and not (used and kind == "generate_until"):
                raise ValueError(f"`metadata.pretrain.{key}` is of no metric of this task: leave it out")
        if extra.doc_to_original is not None and kind not in ("loglikelihood_rolling", "generate_until"):
            raise ValueError(f"`metadata.pretrain.doc_to_original` is for texts, not for {kind}")
        if "gleu" in self.metric_names and extra.doc_to_original is None:
            raise ValueError("metric_list: gleu needs `metadata.pretrain.doc_to_original`, the text that is corrected")
        if kind == "multiple_choice" and self.doc_to_choice is None:
            raise ValueError("output_type multiple_choice needs `doc_to_choice`")
        if kind == "multiple_choice" and (extra.zero_shot_template, extra.few_shot_template) != (None, None):
            raise ValueError("templates over `context` are not for output_type multiple_choice: use doc_to_text")
        for name in self.metric_names:
            if name not in METRIC_NAMES[kind]:
                known = ", ".join(METRIC_NAMES[kind])
                raise ValueError(f"metric_list: metric {name} is not supported for output_type {kind}: {known} are")
        if "{{" in self.description:
            raise ValueError("`description` is not a template here: write the text, or put it into doc_to_text")
        return self

    @property
    def metric_names(self) -> list[str]:
        """Names in the file, or lm-eval's defaults."""
        if self.metric_list is None:
            return list(DEFAULT_METRICS[self.output_type])
        return [entry.metric for entry in self.metric_list]

    @property
    def questions_split(self) -> str | None:
        """The split that is scored, as lm-eval chooses it."""
        return self.test_split or self.validation_split

    @property
    def examples_split(self) -> str | None:
        """The split that examples are drawn from, as lm-eval chooses it; None: the questions themselves."""
        chosen = self.fewshot_config.split or self.fewshot_split or self.training_split or self.validation_split
        return None if chosen == self.questions_split else chosen

    def file_of(self, split: str) -> str:
        """Path or name of the file of a split."""
        if self.dataset_kwargs is not None:
            if split not in self.dataset_kwargs.data_files:
                raise ConfigError(f"task {self.task}: dataset_kwargs.data_files names no file of split {split}")
            return self.dataset_kwargs.data_files[split]
        return self.metadata.pretrain.files.get(split, f"{self.task}_{split}.jsonl")


def read_task_file(path: Path) -> TaskFile:
    """Reads a file, with what it includes. Raises ConfigError for a file that declares no task, or asks for something
    that is not supported."""
    return validate(TaskFile, _tree(path, ()), str(path))


def _tree(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """The keys of a file over those of the files that it includes, as lm-eval merges them."""
    path = path.resolve()
    if path in seen or len(seen) > _MOST_INCLUDES:
        raise ConfigError(f"{path}: includes itself through {' -> '.join(one.name for one in seen)}")
    text = read_text(path)
    if function := _FUNCTION.search(text):
        raise ConfigError(
            f"{path}: {function[1]}: !function {function[2]} is Python, which task files do not call: write a template"
        )
    tree = parse(text, str(path))
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: a task file is a mapping of keys, found {type(tree).__name__}")
    included = tree.pop("include", None)
    merged: dict[str, Any] = {}
    for name in included if isinstance(included, list) else [included] * (included is not None):
        merged |= _tree(path.parent / str(name), (*seen, path))
    return merged | tree
