"""Our RoBERTa with bands as Hugging Face's Longformer, whose windows count both sides without the query itself.

transformers takes the global tokens with each input (`global_attention_mask`), not from a config. So their number,
`tokens` of local_global, is written to config.json as `global_tokens`, which transformers keeps and does not read. A
Longformer has separate query, key and value projections for global tokens; ours shares one set. Export writes it twice,
as the paper initializes them (arXiv 2004.05150, section 3.1), and import reads a folder whose two sets are equal.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, equal
from transformers import (
    LongformerConfig,
    LongformerForMaskedLM,
    LongformerForQuestionAnswering,
    LongformerForSequenceClassification,
    LongformerForTokenClassification,
)

from data_pipeline.tokenizers.specials import Specials
from pretrain.config.attention import Banded
from pretrain.config.model import Model
from pretrain.config.patterns.bands import LocalGlobal
from pretrain.errors import ConfigError
from pretrain.interop.hf.families import roberta
from pretrain.interop.hf.families.bert import encoder_fields
from pretrain.interop.hf.family import HfFamily
from pretrain.interop.hf.links import Link
from pretrain.model_spec.hf_fits import check_longformer


def hf_config(model: Model, specials: Specials) -> LongformerConfig:
    """Every field stated. Raises ConfigError for a model that Longformer cannot express."""
    check_longformer(model)
    roberta.check_padding(model, specials, "Longformer")
    patterns = [model.attention.layer_pattern(layer) for layer in range(model.layers)]
    windows = [2 * (p.reach if isinstance(p, Banded) else p.window) - 2 for p in patterns]  # type: ignore[attr-defined]
    counts = {p.tokens if isinstance(p, LocalGlobal) else 0 for p in patterns}
    (count,) = counts
    global_fields: dict[str, Any] = {"global_tokens": count} if count else {}
    return LongformerConfig(
        **encoder_fields(model, specials),
        sep_token_id=specials.sep,
        attention_window=windows,
        architectures=[LongformerForMaskedLM.__name__],
        **global_fields,
    )


def refuse(tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for windows and segments that are not known here."""
    roberta.refuse(tree, most_layers)
    if (segments := tree.get("type_vocab_size", 2)) != 1:
        raise ConfigError(f"type_vocab_size {segments} is not known here: all tokens are of one segment, 1")
    windows = tree.get("attention_window", 512)
    for window in windows if isinstance(windows, list) else [windows]:
        if not isinstance(window, int) or window < 2 or window % 2:
            raise ConfigError(f"attention_window {window} is not known here: it is an even number above 0")
    tokens = tree.get("global_tokens", 0)
    if not isinstance(tokens, int) or tokens < 0:
        raise ConfigError(f"global_tokens {tokens} is no number of tokens")


def model_of(config: Any) -> dict[str, Any]:
    """Our `model` section of a LongformerConfig, which has all fields of RoBERTa's."""
    windows, tokens = config.attention_window, getattr(config, "global_tokens", 0)
    kind = {"name": "local_global", "tokens": tokens} if tokens else {"name": "banded"}
    every = windows if isinstance(windows, list) else [windows]
    pattern = [kind | {"window": window // 2 + 1} for window in every]
    return roberta.model_of(config) | {"attention": {"pattern": pattern[:1] if len(set(every)) == 1 else pattern}}


def links(model: Model) -> Iterator[Link]:
    for link in roberta.links(model, "longformer"):
        yield _twice(link) if "linear_qkv" in link.mcore_names[0] else link


def _twice(link: Link) -> Link:
    """Writes projections twice: transformers has separate ones for global tokens."""
    count = len(link.hf_names)
    return Link(
        link.mcore_names,
        (*link.hf_names, *map(_global_name, link.hf_names)),
        lambda *values: [*link.out(*values), *link.out(*values)],
        lambda *values: link.back(*values[:count]),
    )


def _global_name(name: str) -> str:
    module, _, leaf = name.rpartition(".")
    return f"{module}_global.{leaf}"


def left_out(model: Model, values: Mapping[str, Tensor]) -> list[str]:
    """Names the tensors of `values` that our model has no parameters for. Raises ConfigError if they are in use."""
    local = [name.replace("_global.", ".") for name in values if "_global." in name]
    if all(equal(values[name], values[_global_name(name)]) for name in local):
        return []
    if any(isinstance(pattern, LocalGlobal) for pattern in model.attention.kinds):
        raise ConfigError(
            "its global tokens have projections of their own (query_global, key_global, value_global), which are not "
            "known here: without global_tokens in config.json it is read as a model that has no global tokens"
        )
    return ["query_global, key_global and value_global of all layers (no token is global)"]


LONGFORMER = HfFamily(
    model_class=LongformerForMaskedLM,
    model_type="longformer",
    objective="masked",
    head_prefixes=("lm_head.", "longformer.pooler.", "pooler."),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
    refuse=refuse,
    left_out=left_out,
    heads=roberta.heads(
        LongformerForSequenceClassification,
        LongformerForTokenClassification,
        LongformerForQuestionAnswering,
    ),
)
