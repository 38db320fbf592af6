"""`pretrain export CHECKPOINT --to peft DIR`: the low-rank updates of a run as an adapter of PEFT.

PEFT has A and B for each linear layer of transformers, which has queries, keys and values, or gate and value, apart
where ours are rows of one matrix. Such layers get the same A, and their rows of B.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pretrain.checkpoint.files import Manifest
from pretrain.checkpoint.state import Record
from pretrain.config.finetune import Lora
from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Engine
from pretrain.errors import ConfigError
from pretrain.interop.hf import card, chat, source_model
from pretrain.interop.hf import folder as folders
from pretrain.interop.hf.export import (
    FullTensors,
    directory_for_export,
    load_written,
    write_generation_config,
    write_model,
)
from pretrain.interop.hf.family import HfFamily
from pretrain.interop.hf.gate import Agreement, our_answers, pass_gate, rows_for
from pretrain.interop.hf.registry import load
from pretrain.interop.hf.source_model import SPECIAL_TOKENS, TOKENIZER_CONFIG
from pretrain.interop.peft.config import CONFIG, TASK_TYPES
from pretrain.interop.peft.gate import with_adapter
from pretrain.interop.peft.weights import WEIGHTS, PeftAdapter, lora_name, module_of, write_weights
from pretrain.model_spec.embeddings import WORD_EMBEDDINGS
from pretrain.model_spec.hf_classes import kind_of
from pretrain.model_spec.mup import OUTPUT_LAYER
from pretrain.run_dir.paths import RECORD

BASE = "base"
_OF_EXPERTS_ONCE = "gate_proj", "up_proj", "down_proj"
"""ends of names of linear layers that were an expert's in transformers 4, and that PEFT reads as its parameters"""
_WITHIN_HEAD = ("dense", "out_proj", "summary")
"""last parts of names of layers within a module that is a head"""
_ENDS = {"embedding": WORD_EMBEDDINGS, "head": OUTPUT_LAYER}
"""our parameters of `finetune.lora.modules_to_save`"""


def export_adapter(
    checkpoint: Path, config: RunConfig, directory: Path, scorer: Callable[[], Engine], base: str | None
) -> Agreement:  # fmt: skip
    """Writes `directory` from a verified checkpoint of a run with `finetune.lora`: adapter_config.json,
    adapter_model.safetensors, tokenizer and model card. `base` is the model that it names, and None exports the
    run's frozen weights to `directory / "base"`. A `base` that is a directory must have these weights. Returns how far
    logits differ; raises ConfigError for a run that PEFT has no form for, RunError when a gate does not pass."""
    lora = config.finetune.lora
    if lora is None:
        raise ConfigError("the run has no finetune.lora, and PEFT's format holds nothing else: export it with --to hf")
    _check_saves_modules(config.model, lora)
    manifest = Manifest.read(checkpoint)
    read = FullTensors(checkpoint, manifest)
    with directory_for_export(directory) as temporary:
        (temporary / BASE).mkdir()
        family, described, end = write_model(checkpoint, config, temporary / BASE, read)
        adapter = _adapter(family, config.model, lora, read, manifest)
        batch = rows_for(config, described, end)
        logits = our_answers(scorer(), config.model, batch)
        hf_model = load_written(family, config.model, temporary / BASE)
        if base is not None and Path(base).is_dir():
            _check_base(Path(base), family, config.model, hf_model, adapter)
        settings = _settings(config, lora, family, hf_model, adapter)
        settings["base_model_name_or_path"] = str(directory / BASE) if base is None else base
        (temporary / CONFIG).write_text(json.dumps(settings, indent=2) + "\n")
        write_weights(temporary / WEIGHTS, adapter)
        hf_model, reading = with_adapter(hf_model, temporary, adapter)
        agreement = pass_gate("exported", logits, hf_model, batch, config.model, reference=reading)
        name = f"PeftModel of {type(hf_model).__name__}"
        (temporary / "README.md").write_text(
            card.text(
                Record.read(checkpoint / RECORD),
                config,
                name,
                agreement.difference,
                library="peft",
                reference=reading,
                origin=source_model.origin_of(checkpoint),
            )
        )
        for file in ("tokenizer.json", TOKENIZER_CONFIG, SPECIAL_TOKENS, chat.FILE):
            if (temporary / BASE / file).is_file():
                shutil.copyfile(temporary / BASE / file, temporary / file)
        if base is not None:
            shutil.rmtree(temporary / BASE)
        else:
            write_generation_config(hf_model, checkpoint, config, temporary / BASE)
    return agreement


def _adapter(family: HfFamily, model: Model, lora: Lora, read: FullTensors, manifest: Manifest) -> PeftAdapter:
    updates, saved = dict[str, tuple[Tensor, Tensor]](), dict[str, Tensor]()
    ends = {_ENDS[module] for module in lora.modules_to_save}
    for link in family.links_of_loaded(model):
        updated = [name for name in link.mcore_names if f"model/{lora_name(name, 'a')}" in manifest.tensors]
        if updated and len(link.mcore_names) > 1:
            raise ConfigError(
                f"Hugging Face's {family.model_type} has {link.hf_names[0].rpartition('.')[0]} made of several "
                f"parameters of this model, so an update of {updated[0]} is no update of one layer there: export the "
                "merged model with --to hf"
            )
        if updated:
            a, b = (torch.from_numpy(read(lora_name(updated[0], matrix))) for matrix in "ab")
            for name, part in zip(link.hf_names, link.out(b), strict=True):
                updates[name] = a, (part.T if family.fan_in_fan_out else part).contiguous()
        elif link.mcore_names[0] in ends or (model.task_head is not None and link.mcore_names[0].startswith("head.")):
            values = link.out(*(torch.from_numpy(read(name)) for name in link.mcore_names))
            saved |= zip(link.hf_names, values, strict=True)
    return PeftAdapter(scale=lora.scale, dropout=lora.dropout, updates=updates, saved=saved)


def _check_saves_modules(model: Model, lora: Lora) -> None:
    """Raises ConfigError for trained ends that are not one module each in PEFT."""
    of_one_module = model.is_causal and not model.tie_word_embeddings and not model.capabilities.head_bias
    if lora.modules_to_save and not of_one_module:
        raise ConfigError(
            f"finetune.lora.modules_to_save=[{', '.join(lora.modules_to_save)}]: PEFT keeps trained embeddings and a "
            "trained head as two modules of a decoder, and those of this model are tied, or more than one matrix: "
            "export the merged model with --to hf"
        )


def _settings(
    config: RunConfig, lora: Lora, family: HfFamily, hf_model: Any, adapter: PeftAdapter
) -> dict[str, Any]:  # fmt: skip
    """The contents of adapter_config.json, without the base model's name."""
    if config.model.task_head is not None:
        task = next((name for name, kind in TASK_TYPES.items() if kind == kind_of(config.objective)), None)
    elif hf_model.can_generate():
        task = "SEQ_2_SEQ_LM" if config.model.is_encoder_decoder else "CAUSAL_LM"
    else:
        task = None
    modules = [name for name, _ in hf_model.named_modules()]
    experts = [name for name, (a, _) in adapter.updates.items() if a.dim() > 2]
    linears = [module_of(name) for name in adapter.updates if name not in experts]
    if experts and (taken := [name for name in linears if name.endswith(_OF_EXPERTS_ONCE)]):
        raise ConfigError(
            f"PEFT takes the names of {taken[0]} and of layers like it for those of experts: export the merged model "
            "with --to hf"
        )
    of_experts = {}
    if experts:
        parameters = [name for name, _ in hf_model.named_parameters()]
        of_experts = {"target_parameters": shortest_suffixes(experts, parameters)}
    return {
        "peft_type": "LORA",
        "task_type": task,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": shortest_suffixes(linears, modules),
        **of_experts,
        "modules_to_save": sorted({_saved_module(name) for name in adapter.saved}) or None,
        "fan_in_fan_out": family.fan_in_fan_out,
        "bias": "none",
        "use_rslora": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def shortest_suffixes(targets: Sequence[str], modules: Sequence[str]) -> list[str]:
    """The shortest ends of the names of `targets` that no other of `modules` ends with, as PEFT matches names."""
    wanted, found = set(targets), set[str]()
    for target in targets:
        parts = target.split(".")
        for count in range(1, len(parts) + 1):
            suffix = ".".join(parts[-count:])
            if all(name in wanted for name in modules if name == suffix or name.endswith(f".{suffix}")):
                found.add(suffix)
                break
    return sorted(found)


def _saved_module(parameter: str) -> str:
    """The module that PEFT saves as one: the head, of which the layer with this parameter may be a part."""
    module = module_of(parameter)
    parent, _, last = module.rpartition(".")
    return parent if last in _WITHIN_HEAD else module


def _check_base(base: Path, family: HfFamily, model: Model, exported: Any, adapter: PeftAdapter) -> None:
    """Raises ConfigError unless the folder `base` has the weights of `exported`, other than the head's."""
    folder = folders.read(base)
    try:
        theirs = load(family, model, base, folder.hf_config, folder.weights.lazy())[0].state_dict()
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"--base {base} cannot be read ({' '.join(str(error).split())[:200]})") from None
    for name, value in exported.state_dict().items():
        if name in adapter.saved:
            continue
        other = theirs.get(name)
        # An export may have a row more, for padding.
        if other is None or not torch.equal(value[: len(other)] if value.dim() else value, other):
            raise ConfigError(
                f"--base {base} has other values in {name} than the frozen weights of this run: name the model that "
                "the run started from, or leave --base out, which exports these weights"
            )
