"""The published data sets that `pretrain finetune fetch` writes, by name."""

from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from data_pipeline.common.suggestions import close_matches, did_you_mean
from pretrain.config.load import read, validate
from pretrain.errors import ConfigError
from pretrain.finetune.sets.published_set import PublishedSet, Variants

_ORDER = (
    *("sst2", "sst5", "trec", "subj", "mr", "cr", "mpqa", "cola", "mrpc", "rte", "cb", "wnli", "boolq"),
    *("stsb", "stsb-translated", "hellaswag", "commonsense-qa", "social-iqa", "piqa", "winogrande", "arc-easy"),
    *("arc-challenge", "openbookqa", "copa", "dream", "conll2003", "wnut17", "ud-ewt", "squad-shifts", "xquad"),
)
"""Files in the order of the list; others follow by name."""


def published_set(name: str) -> PublishedSet:
    """The set of that name. Raises ConfigError for an unknown one."""
    if name not in SETS:
        hint = did_you_mean(close_matches(name, SETS), f"known are {', '.join(SETS)}")
        raise ConfigError(f"there is no published set {name}: {hint}")
    return SETS[name]


def read_sets(path: Path) -> dict[str, PublishedSet]:
    """Sets of a file by name: one with the file's name, or one for each of its `variants`, whose values replace
    `$names` in the file. Raises ConfigError for a file that describes no set."""
    tree = read(path)
    if "variants" not in tree:
        return {path.stem: validate(PublishedSet, tree, str(path))}
    variants = validate(Variants, {"variants": tree.pop("variants")}, str(path)).variants
    try:
        trees = {name: _substituted(tree, values) for name, values in variants.items()}
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{path}: `$` begins a name that each variant has a value for ({error})") from None
    return {name: validate(PublishedSet, tree, f"{path}, {name}") for name, tree in trees.items()}


def _substituted(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {_substituted(key, values): _substituted(one, values) for key, one in value.items()}
    if isinstance(value, list):
        return [_substituted(one, values) for one in value]
    return Template(value).substitute(values) if isinstance(value, str) else value


def _rank(path: Path) -> tuple[int, str]:
    return (_ORDER.index(path.stem) if path.stem in _ORDER else len(_ORDER), path.stem)


SETS: dict[str, PublishedSet] = {
    name: published
    for path in sorted(Path(__file__).with_name("files").glob("*.yaml"), key=_rank)
    for name, published in read_sets(path).items()
}
"""Sets by name."""
