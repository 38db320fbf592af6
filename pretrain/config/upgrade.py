"""Configs that version 0.1.0 wrote, in a run's config.yaml or a checkpoint's record, as today's sections read them.

It wrote every key of a section, also those that do nothing under the chosen name. No section has such keys today.
"""

from copy import deepcopy
from typing import Any

from pydantic import BaseModel

from pretrain.config.section import Section, chosen, section_of

# What it wrote for keys that not every choice reads; where one does nothing, it had no other value.
_WRITTEN: dict[str, Any] = {
    "model.position_offset": 0,
    "model.relative_buckets": 32,
    "model.relative_distance": 128,
    "model.init_std": 0.02,
    "model.scale_residual_init": True,
    "objective.packing": "windows",
    "objective.noise_density": 0.15,
    "objective.mean_span": 3.0,
    "objective.sentinels": 100,
    "objective.whole_words": False,
    "objective.next_sentence": False,
    "objective.short_fraction": 0.1,
    "objective.noise": ["text_infilling", "sentence_permutation"],
    "optimizer.beta2": 0.95,
    "optimizer.eps": 1e-8,
    "optimizer.relative": True,
    "schedule.warmup": "linear",
    "schedule.decay_tokens": None,
    "schedule.decay_steps": None,
    "schedule.final_fraction": 0.1,
}
_WRITTEN_IF_SET = {"data.mixing.cap": None, "data.mixing.temperature": 1.0}


def upgrade(schema: type[BaseModel], tree: Any) -> Any:
    """`tree` without what version 0.1.0 wrote and does nothing. Any other tree is returned as it is: none has all of
    the keys that this version wrote."""
    if not all(_holder(tree, key) is not None for key in _WRITTEN):
        return tree
    upgraded = deepcopy(tree)
    for dotted, value in (_WRITTEN | _WRITTEN_IF_SET).items():
        holder, key = _holder(upgraded, dotted), dotted.rpartition(".")[2]
        if holder is not None and holder[key] == value and not _reads(schema, upgraded, dotted):
            del holder[key]
    _leave_out_window(upgraded)
    return upgraded


def _leave_out_window(tree: dict[str, Any]) -> None:
    """Where no pattern is banded, which reads it: any value was taken."""
    attention = (_holder(tree, "model.attention") or {}).get("attention")
    if isinstance(attention, dict) and "banded" not in attention.get("pattern", ["dense"]):
        attention.pop("window", None)


def _holder(tree: Any, dotted: str) -> dict[str, Any] | None:
    """The mapping that has the last of the keys; None if there is none."""
    *parents, key = dotted.split(".")
    for parent in parents:
        tree = tree.get(parent) if isinstance(tree, dict) else None
    return tree if isinstance(tree, dict) and key in tree else None


def _reads(schema: type[BaseModel], tree: Any, dotted: str) -> bool:
    """Whether what `tree` chooses reads the key. True where there is nothing to choose."""
    *parents, key = dotted.split(".")
    for parent in parents:
        annotation, tree = schema.model_fields[parent].annotation, tree[parent]
        inner = section_of(annotation)
        if inner is None:
            return _has(chosen(annotation, tree), key)
        schema = inner
    if not issubclass(schema, Section) or key not in schema.moved:
        return True
    choice, new = schema.moved[key].split(".")
    return _has(chosen(schema.model_fields[choice].annotation, tree.get(choice)), new)


def _has(kind: type[BaseModel] | None, key: str) -> bool:
    """True for a name that is unknown, of which validation has more to say."""
    return kind is None or key in kind.model_fields
