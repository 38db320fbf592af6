"""Trees of a config, merged: a file with the one that it extends, a command line with a file, what a run says of its
model with the model of the weights that it starts from."""

from typing import Any

from pretrain.config.section import as_mapping, chosen, section_of, settings_of_others


def merge(base: dict[str, Any], over: dict[str, Any], annotation: Any) -> dict[str, Any]:
    """`base` with the values of `over`: mappings merge, everything else replaces. `annotation` is the type of both.
    Where `over` makes another choice (`schedule.name`), settings of `base` that only other choices have are left out,
    since nobody gave them for this one."""
    section = section_of(annotation) or chosen(annotation, over) or chosen(annotation, base)
    others = settings_of_others(annotation, base, over)
    merged = {key: value for key, value in base.items() if key not in others}
    for key, value in over.items():
        before = as_mapping(merged.get(key))
        if isinstance(value, dict) and isinstance(before, dict):
            field = None if section is None else section.model_fields.get(key)
            value = merge(before, value, None if field is None else field.annotation)
        merged[key] = value
    return merged
