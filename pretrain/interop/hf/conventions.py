"""Conventions of a decoder that an export states besides weights and ids: ends and begin of a text, names of special
tokens, settings of sampling. Those of the folder that its model was imported from, or else our own."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from data_pipeline.recipes.chat_template import ChatTemplate
from data_pipeline.recipes.instructions import Instructions
from data_pipeline.recipes.objective import Objective
from data_pipeline.tokenizers.base import Tokenizer
from pretrain.config.model import Model
from pretrain.data.chat_settings import chat_settings
from pretrain.errors import RunError
from pretrain.interop.hf import chat, source_model
from pretrain.interop.hf.source_model import GENERATION, SPECIAL_TOKENS, TURNS, Rendered, SourceModel
from pretrain.run_dir.paths import run_of

_NAMES_OF_IDS = ("_token_id", "_token_ids", "_ids", "_tokens")
_UNNAMED = {"bos_token": "", "eos_token": ""}
"""text written by a template that asks for a name which the source lacks"""
_SYSTEM = {"role": "system", "content": "You are helpful."}
_OF_A_DAY = "strftime_now"
"""function of templates by which they render another text on another day"""


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """Conventions that an export states. The default is that of a model that was born here, without a chat template."""

    source: SourceModel | None = None
    sampling: dict[str, Any] | None = None
    """generation_config.json of the source, also where nothing else of it is said"""
    template: str | None = None
    """the run's chat template"""
    ends: tuple[int, ...] | None = None
    """ids that end a text, that of the chat template first; None: those of the source, or the end of documents"""
    turns: tuple[Rendered, ...] = ()
    """a conversation as transformers' tokenizer of the source has it, or the run's samples, or both; the last one is of
    the template"""
    is_imported: bool = False
    """whether the tokenizer is that of an imported folder, encoders' included"""

    @property
    def finds_special_tokens(self) -> bool:
        """Whether the tokenizer takes what spells a special token for that token."""
        return self.template is not None if self.source is None else not self.source.splits

    @property
    def more_templates(self) -> dict[str, str]:
        """Chat templates besides the usual one, by name."""
        return {} if self.source is None else self.source.templates

    def around(self, tokenizer: Tokenizer) -> tuple[list[int], list[int]] | None:
        """Ids before and after a text; None: those of the objective's samples."""
        if self.source is None or self.source.noted is None or tokenizer.begin_of_text != self.source.begin_of_text:
            return None
        return self.source.noted.before, self.source.noted.after

    def size(self) -> int:
        """Ids that the source's tokenizer has."""
        return 0 if self.source is None or self.source.noted is None else self.source.noted.size

    def set_ids(self, described: PretrainedConfig) -> None:
        """Begin, end and padding in a config."""
        for name, value in ({} if self.source is None else self.source.ids).items():
            setattr(described, name, value)
        if self.ends is not None:
            described.eos_token_id = _one_or_list(self.ends)

    def write_generation_config(self, hf_model: Any, directory: Path) -> None:
        """Writes what transformers makes of the model's config, with the source's settings. Those of an
        encoder-decoder keep its own ids."""
        if not hf_model.can_generate():
            return
        path, is_encoder_decoder = directory / GENERATION, hf_model.config.is_encoder_decoder
        if self.sampling is None or is_encoder_decoder:
            hf_model.generation_config.save_pretrained(directory)
        if self.sampling is None:
            return
        own = json.loads(path.read_text()) if is_encoder_decoder else {}
        own |= {k: v for k, v in self.sampling.items() if not (is_encoder_decoder and k.endswith(_NAMES_OF_IDS))}
        if self.ends is not None:
            own["eos_token_id"] = _one_or_list(self.ends)
        path.write_text(json.dumps(own, indent=2) + "\n")

    def tokenizer_config(self, own: dict[str, Any], tokenizer: Tokenizer, model: Model) -> dict[str, Any]:
        """tokenizer_config.json: `own`, or the source's."""
        described = dict(own)
        if self.source is not None and (self.source.tokenizer or self.source.noted is not None):
            names = {} if self.source.noted is None else self.source.noted.names
            described = names | self.source.tokenizer | {"tokenizer_class": own["tokenizer_class"]}
            if self.source.context not in (None, model.sequence_length):
                described["model_max_length"] = model.sequence_length
            if tokenizer.begin_of_text != self.source.begin_of_text:
                described["add_bos_token"] = tokenizer.begin_of_text is not None
        else:
            described["split_special_tokens"] = own["split_special_tokens"] and not self.finds_special_tokens
            if self.template is not None and tokenizer.begin_of_text is None:
                described.pop("bos_token", None)  # a template may write it, and training had none
        if self.ends is not None:
            described["eos_token"] = _name(tokenizer, self.ends[0])
        return described

    def write_more(self, tokenizer: Tokenizer, directory: Path) -> None:
        """Writes special_tokens_map.json where the source has one."""
        if self.source is None or self.source.special_tokens_map is None:
            return
        eos = {} if self.ends is None else {"eos_token": _name(tokenizer, self.ends[0])}
        path = directory / SPECIAL_TOKENS
        path.write_text(json.dumps(self.source.special_tokens_map | eos, indent=2) + "\n")

    def post_processor(self) -> dict[str, Any] | None:
        """Post-processor of the source's tokenizer.json, which puts special tokens around a text; None: there is
        none."""
        return None if self.source is None else self.source.post_processor

    def check_turns(self, exported: Any) -> None:
        """Raises RunError unless transformers' tokenizer `exported` makes the same of conversations."""
        for expected in self.turns:
            found = exported(expected.text, add_special_tokens=False)["input_ids"]
            if found != expected.ids:
                raise RunError(
                    f"not exported: transformers makes {found[:40]} of a conversation, which is {expected.ids[:40]} of "
                    "the model"
                )
        if self.turns and self.template is not None and _OF_A_DAY not in self.template:
            again, text = source_model.rendered(exported), self.turns[-1].text
            if again is None or again.text != text:
                raise RunError(
                    "not exported: transformers renders the end of a conversation by the chat template as "
                    f"{None if again is None else again.text[-200:]!r}, and the model has {text[-200:]!r}"
                )


def conventions_of(checkpoint: Path, objective: Objective, tokenizer: Tokenizer, encoder: bool) -> Conventions:
    """Conventions of the run of a checkpoint. Raises ConfigError for a file of the run that cannot be read, and
    RunError for a chat template that was trained with and does not render an answer."""
    source, template = source_model.run_source(checkpoint, tokenizer), chat.run_template(checkpoint)
    sampling = None if source is None else source.generation
    if encoder or objective.task_head is not None or objective.needs.end != "end_of_text":
        return Conventions(sampling=sampling, is_imported=source is not None)
    known = source.noted.turns if source is not None and source.noted is not None else None
    turns, end = [] if known is None else [known], None
    if template is not None and (source is None or source.answers_by_template):
        rendering = rendering_of(checkpoint, objective, tokenizer, source)
        turns += [] if (trained := _rendered(rendering)) is None else [trained]
        try:
            end = end_of_turn(rendering)
        except ValueError as error:
            raise RunError(
                f"not exported: what ends an answer is unknown, as {error}: give what it asks for a value there"
            ) from None
    is_new = end is not None and (source is None or end not in source.ends)
    ends = tuple(dict.fromkeys((end, tokenizer.end_of_text))) if end is not None and is_new else None
    if isinstance(objective, Instructions) and objective.chat_template is None and source is not None and source.ends:
        end = tokenizer.end_of_text  # which follows each response
        ends = None if end in source.ends else (end, *source.ends)
    return Conventions(
        source=source,
        sampling=sampling,
        template=template,
        turns=tuple(turns),
        ends=ends,
        is_imported=source is not None,
    )


def rendering_of(
    checkpoint: Path, objective: Objective, tokenizer: Tokenizer, source: SourceModel | None
) -> ChatTemplate:  # fmt: skip
    """The chat template of a checkpoint's run, with the names of the source's special tokens, and the variables and the
    date of an objective that renders by it."""
    names = {} if source is None or source.noted is None else _UNNAMED | source.noted.names
    run = run_of(checkpoint)
    settings = chat_settings(objective, run)
    return ChatTemplate(run.chat_template, tokenizer, {**names, **settings.template_variables}, settings.date)


def end_of_turn(template: ChatTemplate) -> int | None:
    """The special piece that a template writes after an answer, the last where several follow each other. None: it
    writes none. Raises ValueError with the reason where it renders no question with its answer."""
    question, answer = TURNS[:2]
    try:
        text = template.render([question, answer])
    except ValueError:  # of a template that wants a system turn
        text = template.render([_SYSTEM, question, answer])
    if answer["content"] not in text:
        raise ValueError("the chat template does not write an answer as it is")
    pieces = template.split(text[text.rindex(answer["content"]) :])
    ending = dropwhile(lambda piece: isinstance(piece, str), pieces)
    run = [piece for piece in takewhile(lambda piece: not isinstance(piece, str), ending) if isinstance(piece, int)]
    return run[-1] if run else None


def _rendered(template: ChatTemplate) -> Rendered | None:
    try:
        text = template.question([dict(turn) for turn in TURNS])
    except ValueError:
        return None
    return Rendered(text=text, ids=template.encode([text])[0][0].tolist())


def _one_or_list(ids: Sequence[int]) -> int | list[int]:
    return ids[0] if len(ids) == 1 else list(ids)


def _name(tokenizer: Tokenizer, index: int) -> str:
    return next(name for name, number in tokenizer.special_pieces().items() if number == index)
