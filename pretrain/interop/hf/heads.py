"""Fine-tuned models with a task head as the classes of transformers that have such a head."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from data_pipeline.recipes.choice import Choice
from data_pipeline.recipes.objective import Objective
from data_pipeline.recipes.spans import Spans
from data_pipeline.recipes.tagging import Tagging
from data_pipeline.recipes.text_labels import Classification, Regression
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.specials import Specials
from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.interop.hf.family import HfFamily, HfHead
from pretrain.interop.hf.links import Link, one, same
from pretrain.model_spec.embeddings import WORD_EMBEDDINGS
from pretrain.model_spec.hf_classes import check_choice, head_class, kind_of

_CHOICES = 4
"""`objective.max_choices` of an imported model that says nothing of it (as of SWAG)"""
_OF_TOKENS = ("head.", "output_layer.")
"""prefixes of the names of a language-model head's parameters"""
_PADS = ("[PAD]", "<pad>")


def with_head(family: HfFamily, objective: Objective, pad: int | None = None) -> HfFamily:
    """The family's class with the task head of `objective`, and its links. `pad`: the id that decoders find the last
    token of a text by; a config of a larger vocabulary has a row for it. Raises ConfigError where transformers has no
    such class, or one with another head."""
    kind = kind_of(objective)
    assert family.declared is not None, "the registry fills it in"
    head_class(family.declared, objective)
    head = family.heads[kind]

    def hf_config(model: Model, specials: Specials) -> PretrainedConfig:
        """The family's, with the labels."""
        grown = model if pad is None else model.model_copy(update={"vocabulary": max(model.vocab_size, pad + 1)})
        described = family.hf_config(grown, specials)
        described.architectures = [head.model_class.__name__]
        for key, value in head.fields.items():
            setattr(described, key, value)
        if pad is not None:
            described.pad_token_id = pad
        if kind == "detector":
            return described
        if kind in ("spans", "span"):
            described.num_labels = 2
            return described
        if isinstance(objective, Choice):
            check_choice(model, objective)
            described.num_labels = 1
            described.max_choices = objective.max_choices
            described.language_model_weight = objective.language_model_weight
            if head.double:
                described.summary_first_dropout = model.dropout
            return described
        labels = [str(label) for label in getattr(objective, "labels", ["LABEL_0"])]
        described.id2label = dict(enumerate(labels))
        described.label2id = {label: number for number, label in enumerate(labels)}
        if kind == "sequence":
            described.problem_type = "regression" if objective.loss == "regression" else "single_label_classification"
        return described

    def with_head_of(of_family: Callable[[Model], Iterator[Link]], model: Model) -> Iterator[Link]:
        for link in of_family(model):
            kept = kind == "choice" and head.double and model.has_vocabulary_logits
            if kept or not link.mcore_names[0].startswith(_OF_TOKENS):
                link = _renamed(link, head.prefix)
                grows = pad is not None and pad >= model.vocab_size and link.mcore_names == (WORD_EMBEDDINGS,)
                yield _with_row(link) if grows else link
        yield from _head_links(head, model)

    prefixes = (head.classifier, *((head.pooler,) if head.pooler else ()), *((head.unused,) if head.unused else ()))
    return replace(
        family,
        model_class=head.model_class,
        hf_class=None,
        hf_config=hf_config,
        links=partial(with_head_of, family.links),
        loaded_links=family.loaded_links and partial(with_head_of, family.loaded_links),
        head_prefixes=(*(f"{name}." for name in prefixes), *family.head_prefixes),
        left_out=lambda model, values: _left_out(head, model, values),
    )


def without_head(family: HfFamily) -> HfFamily:
    """The family's encoder alone. Raises ConfigError for a family that is exported with its head."""
    if family.encoder is None:
        raise ConfigError(
            f"a {family.model_type} model is exported with its head, and transformers reads its encoder from that: "
            "leave out --encoder"
        )

    def hf_config(model: Model, specials: Specials) -> PretrainedConfig:
        described = family.hf_config(model.headless(), specials)
        described.architectures = [family.encoder.__name__]
        return described

    def links(model: Model) -> Iterator[Link]:
        for link in family.links(model.headless()):
            pools = family.pooler is not None and link.hf_names[0].startswith(family.pooler)
            if pools or not link.mcore_names[0].startswith(_OF_TOKENS):
                yield replace(link, hf_names=tuple(name.partition(".")[2] for name in link.hf_names))

    return replace(family, model_class=family.encoder, hf_class=None, hf_config=hf_config, links=links)


def decoder_padding(model: Model, objective: Objective, tokenizer: Tokenizer) -> int | None:
    """The id that pads the texts of a decoder with a task head in transformers, which finds a text's last token by it:
    the tokenizer's own, or else the first id that it doesn't use. None: the model is no decoder alone, or predicts
    tokens."""
    if model.task_head is None or model.task_head.kind == "choice" or not model.is_causal:
        return None
    specials = objective.specials(tokenizer)
    own = next((index for index in map(tokenizer.id_of, _PADS) if index not in (None, specials.end)), None)
    return specials.vocabulary if own is None else own


def objective_of(config: Any, family: HfFamily) -> Objective | None:
    """Our objective for a config whose class has a task head; None: it has a language-model head. Raises ConfigError
    for a head that is not known here."""
    names: Sequence[str] = config.architectures or ()
    heads = {k: h for k, h in family.heads.items() if k != "detector"}  # of which the encoder alone is read
    kind = next((k for k, h in heads.items() if h.model_class.__name__ in names), None)
    if kind is None:
        if unknown := [name for name in names if name.endswith(_CLASSES)]:
            raise ConfigError(f"{unknown[0]} has a head that is not known here; known are {', '.join(_known(family))}")
        return None
    head = family.heads[kind]
    for key, value in head.fields.items():
        if (configured := getattr(config, key, value)) != value:
            raise ConfigError(f"{key} {configured} is not known here: it is {value}")
    if kind in ("spans", "span"):
        return Spans(conditional_end=kind == "span")
    if kind == "choice":
        return Choice(
            max_choices=getattr(config, "max_choices", _CHOICES),
            language_model_weight=getattr(config, "language_model_weight", 0.0),
        )
    if kind == "sequence" and (config.problem_type == "regression" or config.num_labels == 1):
        if config.num_labels != 1:
            raise ConfigError(f"a regression of {config.num_labels} numbers is not known here: it is of one")
        return Regression()
    if config.problem_type == "multi_label_classification":
        raise ConfigError("problem_type multi_label_classification is not known here: a text has one label")
    labels = [str(config.id2label[number]) for number in range(config.num_labels)]
    return Classification(labels=list(labels)) if kind == "sequence" else Tagging(labels=labels)


_CLASSES = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "DoubleHeadsModel",
)


def _left_out(head: HfHead, model: Model, values: Mapping[str, Tensor]) -> list[str]:
    """A language-model head of its own beside the task head of a model that keeps none."""
    unread = head.double and not model.has_vocabulary_logits and not model.tie_word_embeddings
    return [name for name in values if unread and name.startswith("lm_head.")]


def _known(family: HfFamily) -> list[str]:
    return [head.model_class.__name__ for head in family.heads.values()] or ["none"]


def _renamed(link: Link, prefix: tuple[str, str]) -> Link:
    """The link with `prefix[1]` in place of `prefix[0]` at the beginning of Hugging Face's names."""
    before, after = prefix
    names = tuple(after + name.removeprefix(before) if name.startswith(before) else name for name in link.hf_names)
    return replace(link, hf_names=names)


def _with_row(link: Link) -> Link:
    """The link of embeddings with one more row there, of zeros, which no text has."""

    def out(*values: Tensor) -> list[Tensor]:
        (rows,) = link.out(*values)
        return [torch.cat((rows, rows.new_zeros(1, *rows.shape[1:])))]

    return replace(link, out=out, back=lambda rows: link.back(rows[:-1]))


def _head_links(head: HfHead, model: Model) -> Iterator[Link]:
    assert model.task_head is not None, "the caller looks"
    if model.task_head.kind == "detector":
        for leaf in ("weight", "bias"):
            yield same(f"head.dense.{leaf}", f"{head.pooler}.{leaf}")
            yield same(f"head.detector.{leaf}", f"{head.classifier}.{leaf}")
        return
    if model.task_head.kind == "span":
        yield from _conditional_links(head, model)
        return
    if model.has_pooler:
        assert head.pooler is not None, "both have a dense layer, or neither"
        for leaf in ("weight", "bias"):
            yield same(f"head.pooler.{leaf}", f"{head.pooler}.{leaf}")
    classifier = same("head.classifier.weight", f"{head.classifier}.weight")
    if model.task_head is not None and model.task_head.kind == "choice":
        yield _with_bias(f"{head.classifier}.weight", f"{head.classifier}.bias")
    else:
        yield classifier if head.unused is None else _with_unused(classifier.hf_names[0], head.unused)
    if model.classifier_bias:
        yield same("head.classifier.bias", f"{head.classifier}.bias")


def _conditional_links(head: HfHead, model: Model) -> Iterator[Link]:
    """Theirs reads both states by one matrix, and has a classifier of questions without an answer, which ours has not:
    zeros, by which it says nothing."""
    ends, classes, hidden = head.pooler, head.unused, model.hidden
    for leaf in ("weight", "bias"):
        yield same(f"head.start.{leaf}", f"{head.classifier}.dense.{leaf}")
        yield same(f"head.norm.{leaf}", f"{ends}.LayerNorm.{leaf}")
        yield same(f"head.end.{leaf}", f"{ends}.dense_1.{leaf}")
    yield Link(
        mcore_names=("head.dense.weight", "head.of_start.weight"),
        hf_names=(f"{ends}.dense_0.weight",),
        out=lambda of_end, of_start: [torch.cat((of_end, of_start), dim=1)],
        back=lambda joined: joined.split(hidden, dim=1),
    )
    yield one(
        "head.dense.bias",
        (
            f"{ends}.dense_0.bias",
            *(f"{classes}.{name}" for name in ("dense_0.weight", "dense_0.bias", "dense_1.weight")),
        ),
        lambda bias: [bias, *(bias.new_zeros(shape) for shape in ((hidden, 2 * hidden), (hidden,), (1, hidden)))],
        lambda bias, *_: bias,
    )


def _with_bias(classifier: str, bias: str) -> Link:
    """The classifier's weight, and a bias of zero. One from elsewhere is left out: it adds the same to all choices."""
    return one(
        "head.classifier.weight",
        (classifier, bias),
        lambda weight: [weight, weight.new_zeros(len(weight))],
        lambda weight, _: weight,
    )


def _with_unused(classifier: str, unused: str) -> Link:
    """The classifier's weight, and zeros for a dense layer that no answer depends on."""

    def out(weight: Tensor) -> list[Tensor]:
        hidden = weight.shape[1]
        return [weight, weight.new_zeros(hidden, hidden), weight.new_zeros(hidden)]

    return one("head.classifier.weight", (classifier, f"{unused}.weight", f"{unused}.bias"), out, lambda x, *_: x)
