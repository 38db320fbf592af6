"""Modules that predict further tokens, in folders of Hugging Face's format: as layers behind the last one, the way that
DeepSeek-V3 was released. Main models of transformers do not have these layers, so no gate compares them."""

from collections.abc import Container, Iterator
from itertools import chain, count

from pretrain.config.model import Model
from pretrain.interop.hf.family import HfFamily
from pretrain.interop.hf.links import Link
from pretrain.model_spec.mtp import mtp_depths

_WORDS, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


def depths_of(family: HfFamily, layers: int, tensors: Container[str]) -> int:
    """Number of such layers that a folder with these tensors has behind its `layers`; 0 in families that have none."""
    if family.mtp_links is None:
        return 0
    return next(depth for depth in count() if f"model.layers.{layers + depth}.eh_proj.weight" not in tensors)


def is_of_mtp(name: str, model: Model) -> bool:
    """Whether a tensor of a folder belongs to one of the model's."""
    return name.startswith(tuple(f"model.layers.{model.layers + depth}." for depth in mtp_depths(model)))


def own_links(family: HfFamily, model: Model) -> Iterator[Link]:
    """Links to what such layers have of their own."""
    return iter(()) if family.mtp_links is None or model.mtp is None else family.mtp_links(model)


def copies(model: Model) -> Iterator[tuple[str, str]]:
    """Names of what such layers hold copies of in a folder: (copy, the tensor of the model)."""
    head = _WORDS if model.tie_word_embeddings else _HEAD
    for depth in mtp_depths(model):
        layer = f"model.layers.{model.layers + depth}"
        yield from ((f"{layer}.embed_tokens.weight", _WORDS), (f"{layer}.shared_head.head.weight", head))


def all_links(family: HfFamily, model: Model) -> Iterator[Link]:
    """Links to the tensors of a folder that an export writes: the model's, and those of such layers with their
    copies."""
    if family.mtp_links is None or model.mtp is None:
        return family.links(model)
    by_name = {link.hf_names[0]: link for link in family.links(model)}
    copied = ((name, by_name[original]) for name, original in copies(model))
    of_copies = (Link(link.mcore_names, (name,), link.out, link.back) for name, link in copied)
    return chain(family.links(model), family.mtp_links(model), of_copies)
