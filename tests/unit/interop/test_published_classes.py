"""What each shipped config exports to, as `docs/families.md` says."""

from pathlib import Path

import pytest
import torch

from data_pipeline.common.plugins import Registry
from data_pipeline.errors import DataError
from data_pipeline.tokenizers.specials import Specials
from pretrain.config.families import Capabilities
from pretrain.config.load import load
from pretrain.config.model_values import ModelValues
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.model_spec import hf_classes
from pretrain.model_spec.hf_class import HfClass
from pretrain.model_spec.parameters import num_parameters
from tests.helpers import classics
from tests.unit.test_configs import RUNS, name

IDS = Specials(pad=1, cls=0, sep=2, mask=4, start=1, end=2, sentinels=(), vocabulary=300)
CLASSES = {
    "gpt/": "OpenAIGPTLMHeadModel",
    "gpt2/": "GPT2LMHeadModel",
    "gpt3/": "GPTNeoForCausalLM",
    "bert/": "BertForPreTraining",
    "roberta/": "RobertaForMaskedLM",
    "albert/": "AlbertForPreTraining",
    "xlm-r/base": "RobertaForMaskedLM",
    "xlm-r/large": "RobertaForMaskedLM",
    "xlm/": "XLMWithLMHeadModel",
    "roformer/": "RoFormerForMaskedLM",
    "electra/": "ElectraForMaskedLM",  # its encoder's config; the discriminator's class follows from its head
    "xlnet/": "XLNetLMHeadModel",
    "t5/": "T5ForConditionalGeneration",
    "t5-v1.1/": "T5ForConditionalGeneration",
    "byt5/": "T5ForConditionalGeneration",
    "transformer/": "MarianMTModel",
    "distilbert/": "DistilBertForMaskedLM",
    "tinybert/": "BertForMaskedLM",
    "bart/": "BartForConditionalGeneration",
    "pegasus/": "PegasusForConditionalGeneration",
    "llama/": "LlamaForCausalLM",
    "llama1/": "LlamaForCausalLM",
    "llama2/": "LlamaForCausalLM",
    "llama3/": "LlamaForCausalLM",
    "smollm2/": "LlamaForCausalLM",
    "mistral/": "MistralForCausalLM",
    "qwen2/": "Qwen2ForCausalLM",
    "qwen3/": "Qwen3ForCausalLM",
    "mixtral/": "MixtralForCausalLM",
    "qwen3-moe/": "Qwen3MoeForCausalLM",
    "olmoe/": "OlmoeForCausalLM",
    "dots1/": "Dots1ForCausalLM",
    "deepseek-v2/": "DeepseekV2ForCausalLM",
    "deepseek-v3/": "DeepseekV3ForCausalLM",
    "debug/latent": "DeepseekV3ForCausalLM",
    "debug/mtp": "DeepseekV3ForCausalLM",
    "debug/experts-biased": "Dots1ForCausalLM",
    "ctrl/": "CTRLLMHeadModel",
    "bloom/": "BloomForCausalLM",
    "gemma2/": "Gemma2ForCausalLM",
    "gemma3/": "Gemma3ForCausalLM",
    "debug/gpt": "GPTNeoForCausalLM",
    "debug/bert": "BertForPreTraining",
    "debug/tinybert": "BertForMaskedLM",
    "debug/roberta": "RobertaForMaskedLM",
    "debug/electra": "ElectraForMaskedLM",
    "debug/xlnet": "XLNetLMHeadModel",
    "debug/roformer": "RoFormerForMaskedLM",
    "debug/albert": "AlbertForPreTraining",
    "debug/t5": "T5ForConditionalGeneration",
    "debug/transformer": "MarianMTModel",
    "debug/pegasus": "PegasusForConditionalGeneration",
    "debug/bart": "BartForConditionalGeneration",
    **classics.rows("CLASSES"),
}
REFUSED = {
    "t5/decoder-lm": "T5 has an encoder",
    "t5/prefix-lm": "T5 has an encoder",
    **classics.rows("REFUSED"),
    "transformer-xl/enwik8": "model.embedding_scale",
    "transformer-xl/wikitext-103": "model.cutoffs",
    "debug/arithmetic": "model.positions",
    "debug/demo": "model.positions",
    "debug/ladder": "model.positions",
    "debug/experts": "model.experts.shared=0",
    "debug/long": "model.attention.pattern",
    "debug/sparse-transformer": "model.attention.pattern",
    "debug/topics": "model.positions",
    **dict.fromkeys(
        [
            *(f"rnn/{kind}" for kind in ("bahdanau", "luong", "sutskever", "zaremba-medium")),
            "debug/rnn",
            "debug/reversal",
        ],
        "no class of transformers is a recurrent network",
    ),
    "sparse-transformer/enwik8": "model.attention.pattern",
    **classics.rows("REFUSED"),
}


@pytest.mark.parametrize("path", RUNS, ids=name)
def test_a_shipped_config_exports_to_the_class_that_docs_name(path: Path) -> None:
    from pretrain.interop.hf.registry import hf_family_of

    model = load(RunConfig, path, ["model.vocabulary=300000"]).model
    if name(path) in REFUSED:
        with pytest.raises(ConfigError, match=REFUSED[name(path)]):
            hf_family_of(model).hf_config(model, IDS)
        return
    family = hf_family_of(model)
    described = family.hf_config(model, IDS)
    expected = next(CLASSES[prefix] for prefix in CLASSES if name(path).startswith(prefix))
    assert described.architectures == [family.class_of(model).__name__] == [expected]


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ({}, r"model\.family=theirs comes from an installed package.* cannot be exported"),
        ({"theirs": HfClass(model_type="theirs")}, r"No installed package declares 'theirs' in pretrain\.hf_families"),
    ],
)
def test_a_family_of_a_package_without_its_classes_is_not_exported(
    classes: dict[str, HfClass], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pretrain.interop.hf.registry import hf_family_of

    monkeypatch.setattr(hf_classes, "HF_CLASSES", Registry("pretrain.hf_classes", classes, HfClass))
    model = load(RunConfig, RUNS[0], ["model.vocabulary=50000"]).model.model_copy(update={"family": "theirs"})
    monkeypatch.setattr(ModelValues, "capabilities", Capabilities(decoder=True))
    with pytest.raises((ConfigError, DataError), match=said):
        hf_family_of(model)


def test_a_package_s_class_of_a_known_model_type_leaves_ours_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = HfClass(model_type="gpt2")
    monkeypatch.setattr(hf_classes, "HF_CLASSES", Registry("pretrain.hf_classes", {"theirs": theirs}, HfClass))
    model = load(RunConfig, "gpt2/124m").model
    ours = hf_classes.class_of(model)
    assert hf_classes.by_model_type()["gpt2"] is ours
    assert hf_classes.name_apart(ours) is None
    monkeypatch.setattr(ModelValues, "capabilities", Capabilities(decoder=True))
    assert hf_classes.class_of(model.model_copy(update={"family": "theirs"})) is theirs
    assert hf_classes.name_apart(theirs) == "theirs"


@pytest.mark.parametrize("config", ["ctrl/1.6b", "gpt2/124m"])
def test_a_part_of_a_package_that_the_class_of_a_family_lacks_is_not_exported(
    config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = (path for path in RUNS if name(path) == config)
    model = load(RunConfig, path, ["model.vocabulary=300000"]).model
    monkeypatch.setattr(ModelValues, "parts_apart", ("theirs",))
    with pytest.raises(ConfigError, match=r"model\.theirs comes from an installed package.* has it"):
        hf_classes.class_of(model)


def test_xlm_is_what_transformers_makes_of_the_released_config() -> None:
    from transformers import XLMConfig, XLMWithLMHeadModel  # seconds

    with torch.device("meta"):
        theirs = XLMWithLMHeadModel(XLMConfig(vocab_size=95_000, emb_dim=1024, n_heads=8, n_langs=15))
    (path,) = (path for path in RUNS if name(path) == "xlm/tlm")
    model = load(RunConfig, path).model
    positions = (512 - model.sequence_length) * 1024  # of which the released model has more than it was trained on
    assert num_parameters(model, padded=False) == theirs.num_parameters() - positions
    assert model.heads == theirs.config.n_heads
