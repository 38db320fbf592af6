"""Folders as they are released become runs, and go out again as what transformers computes with the folder."""

from pathlib import Path
from typing import Any

import numpy as np

from pretrain.errors import ConfigError, RunError
from tests.helpers.hf import read_json
from tests.helpers.hf_folders import changed, config, tensors, write
from tests.helpers.ranks import run_ranks

HEAD, WORDS = "lm_head.weight", "model.embed_tokens.weight"
IDS = np.arange(2 * 24).reshape(2, 24) * 7 % 270


def _there_and_back(folders: dict[str, Path], root: Path) -> dict[str, Any]:
    """By folder: warnings, the model's section, exported config.json, and how far transformers' logits of the export
    are from those of the folder (where it reads it); or the sentence that refuses it."""
    from pretrain.evaluate.opening import build_empty, build_scorer
    from pretrain.interop.hf.export import dtype_of_source, export
    from pretrain.interop.hf.imports import import_hf, read_config

    found: dict[str, Any] = {}
    for name, folder in folders.items():
        run, exported, warnings = root / f"run-{name}", root / f"out-{name}", list[str]()
        try:
            described = read_config(folder, run, random_head=name == "headless")
            gate = import_hf(folder, described, build_empty(described), warnings.append).difference
        except (ConfigError, RunError) as error:
            found[name] = str(error)
            continue
        checkpoint = run / "checkpoints" / "step-00000000"
        export(checkpoint, described, exported, lambda c=described, p=checkpoint: build_scorer(c, p))
        moved = _moved(folder, exported) if name in ("untied", "gemma3") else None
        found[name] = gate, warnings, described.model, read_json(exported / "config.json"), moved
        found[name] += (dtype_of_source(checkpoint),)
    return found


def _moved(folder: Path, exported: Path) -> float:
    """How far the logits of an export are from those of the folder, both by the classes that transformers finds."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    kind = AutoModelForImageTextToText if "vision_config" in read_json(folder / "config.json") else AutoModelForCausalLM
    ids = torch.from_numpy(IDS)
    with torch.no_grad():
        first, second = (
            of.from_pretrained(path, dtype=torch.float32).eval()(input_ids=ids, attention_mask=torch.ones_like(ids))
            for of, path in ((kind, folder), (AutoModelForCausalLM, exported))
        )
    return float((first.logits - second.logits).abs().max())


def test_released_folders_become_runs_and_go_out_as_what_they_were(tmp_path: Path) -> None:
    made = {kind: write(kind, tmp_path / kind) for kind in ("llama", "gemma2", "gemma3", "kanana", "deepseek-fp8")}
    broken = config(model_type="llama", rope_parameters={"rope_type": "default", "rope_theta": None})
    folders = made | {
        "untied": changed(
            made["llama"],
            tmp_path / "untied",
            config(tie_word_embeddings=True),
            tensors(lambda t: t.update({HEAD: t[WORDS] * 2})),
        ),
        "headless": changed(made["llama"], tmp_path / "headless", tensors(lambda t: t.pop(HEAD))),
        "broken": changed(made["llama"], tmp_path / "broken", broken),
    }
    found = run_ranks(1, _there_and_back, folders, tmp_path)[0]
    sentence = found.pop("broken")
    assert isinstance(sentence, str)
    assert "\n" not in sentence
    assert {name: said for name, said in found.items() if isinstance(said, str)} == {}
    assert all(result[0] <= 1e-4 for result in found.values()), found
    classes = {name: result[3]["architectures"][0] for name, result in found.items()}
    assert classes == {
        "llama": "LlamaForCausalLM",
        "gemma2": "Gemma2ForCausalLM",
        "gemma3": "Gemma3ForCausalLM",
        "kanana": "MistralForCausalLM",
        "deepseek-fp8": "DeepseekV3ForCausalLM",
        "untied": "LlamaForCausalLM",
        "headless": "LlamaForCausalLM",
    }
    assert found["gemma2"][3]["query_pre_attn_scalar"] == found["gemma3"][3]["query_pre_attn_scalar"] == 24
    assert found["untied"][3]["tie_word_embeddings"] is False
    assert found["untied"][4] <= 1e-5
    assert found["gemma3"][4] <= 1e-5
    assert found["kanana"][3]["sliding_window"] is None
    assert not {"quantization_config", "auto_map"} & found["deepseek-fp8"][3].keys()
    assert "initialized randomly" in found["headless"][1][0]
    assert not found["llama"][1]
    assert not found["gemma2"][1]
    said = {"gemma3": "text and pictures", "kanana": "read as a mistral", "untied": "imported untied"}
    for name, sentence in (said | {"deepseek-fp8": "128 x 128 are dequantised"}).items():
        assert sentence in "; ".join(found[name][1])
    assert "code of its own, which is not run" in found["deepseek-fp8"][1][0]
    assert [found[name][5] for name in ("llama", "deepseek-fp8")] == ["fp32", "bf16"], "for --dtype source"
