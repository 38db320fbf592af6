"""Declaration of a family of Hugging Face: conversions of configs and tensors in both directions."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import PretrainedConfig

from data_pipeline.tokenizers.specials import Specials
from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.interop.hf.links import Link
from pretrain.model_spec.hf_class import HfClass


def _any_config(tree: dict[str, Any], most_layers: int) -> None:
    pass


def _no_settings(section: dict[str, Any]) -> dict[str, Any]:
    return {}


def _nothing(model: Model, values: Mapping[str, Tensor]) -> list[str]:
    return []


@dataclass(frozen=True, kw_only=True)
class HfHead:
    """A class of transformers with the head of a fine-tuned model in place of a language-model head."""

    model_class: Any
    classifier: str
    """name of the last linear layer"""
    pooler: str | None = None
    """name of the dense layer before it; None: it has none"""
    prefix: tuple[str, str] = ("", "")
    """prefixes of the names of the other tensors in the family's class, and here"""
    unused: str | None = None
    """name of a dense layer that is there without use"""
    double: bool = False
    """the class has a language-model head too"""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """fields of config.json that say which head it is"""


@dataclass(frozen=True, kw_only=True)
class HfFamily:
    """A family of Hugging Face: one instance at the end of its file, and a place in the table of `registry.py`."""

    model_class: Any
    """class of transformers, whose `config_class` reads config.json"""
    model_type: str
    """`model_type` in config.json"""
    objective: str
    """objective of an imported run"""
    head_prefixes: tuple[str, ...]
    """prefixes of tensor names that a folder may lack (they are then initialized), or may have without use"""
    hf_config: Callable[[Model, Specials], PretrainedConfig]
    """config for one of our models. Raises ConfigError for a model that it cannot express"""
    model_of: Callable[[Any], dict[str, Any]]
    """our `model` section for a config"""
    links: Callable[[Model], Iterator[Link]]
    """pairs of tensor names, with the conversion in both directions"""
    objective_of: Callable[[dict[str, Any]], dict[str, Any]] = _no_settings
    """settings of the objective that our `model` section asks for"""
    drawn: tuple[str, ...] = ()
    """prefixes of the names of our parameters that no class has, where encoders alone are imported"""
    loaded_links: Callable[[Model], Iterator[Link]] | None = None
    """the same for tensors of the model that transformers loads, where those of a folder are others; None: they are the
    same"""
    mtp_links: Callable[[Model], Iterator[Link]] | None = None
    """links to tensors of a folder that modules for further tokens (`model.mtp`) have of their own; None: folders have
    none"""
    hf_class: Callable[[Model], Any] | None = None
    """class of a model, where there are several; absent: `model_class`"""
    refuse: Callable[[dict[str, Any], int], None] = _any_config
    """raises ConfigError for a config.json that transformers would read as something else; the number is that of the
    folder's tensors, which layers cannot exceed"""
    objectives: Mapping[str, str] = field(default_factory=dict)
    """objective of an imported run by our family, where it is another one"""
    left_out: Callable[[Model, Mapping[str, Tensor]], list[str]] = _nothing
    """tensors that links lead to and that are not imported. Raises ConfigError where they would change answers"""
    heads: Mapping[str, HfHead] = field(default_factory=dict)
    """classes of fine-tuned models by kind (`hf_class.Kind`)"""
    declared: HfClass | None = None
    """the class that it converts to, as the run's end knows it: `registry.py` fills it in"""
    encoder: Any = None
    """class of the encoder without a head, whose tensors have names without the first part of those of `links`; None:
    encoders are exported with their heads"""
    untrained: tuple[str, ...] = ()
    """prefixes of tensors of the encoder's class that no run trains: transformers draws them"""
    pooler: str | None = None
    """name of the dense layer of the encoder's class that classifiers begin with, where no class has ours"""
    fan_in_fan_out: bool = False
    """whether layers are Conv1D, which keeps weights [inputs, outputs]; PEFT's name"""
    padded: bool = True
    """whether rows with padding have the same answers in both implementations"""

    @property
    def has_no_head(self) -> bool:
        """Whether no class predicts what its models are pretrained with: encoders alone are exported and imported."""
        return self.encoder is not None and self.encoder is self.model_class

    def class_of(self, model: Model) -> Any:
        """The class of transformers for `model`."""
        return self.model_class if self.hf_class is None else self.hf_class(model)

    def describe(self, model: Model, specials: Specials) -> PretrainedConfig:
        """`hf_config` of a model. Raises ConfigError, too, for one that transformers does not take."""
        try:
            return self.hf_config(model, specials)
        except ConfigError:
            raise
        except Exception as error:  # the library raises whatever a value leads to
            sentence = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"transformers' class of a {self.model_type} does not take this model, so it cannot be exported: "
                f"{sentence}"
            ) from None

    def links_of_loaded(self, model: Model) -> Iterator[Link]:
        """Links to the tensors of the model that transformers loads."""
        return self.links(model) if self.loaded_links is None else self.loaded_links(model)
