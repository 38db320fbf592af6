"""Exports with weights of another type, or in several files: transformers and import read the same values."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.errors import RunError
from tests.helpers.families import family_config
from tests.helpers.hf import randomise, read_json, save, tokenizer_for
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine

VOCABULARY = 390
SHARD_BYTES = 60_000


def _config(family: str) -> Any:
    return family_config(family, model={"vocabulary": VOCABULARY})


def _exports(family: str, tokenizer: Path, directory: Path) -> dict[str, Any]:
    """Exports the same checkpoint plain, in bf16 shards, and in fp32 shards; largest values that import reads."""
    from transformers import AutoModel

    from pretrain.evaluate.opening import build_scorer
    from pretrain.interop.hf import folder
    from pretrain.interop.hf.export import export
    from pretrain.interop.hf.registry import hf_family_of, load
    from pretrain.interop.hf.repack import StoredAs

    config = _config(family)
    engine = build_engine(config)
    randomise(engine)
    checkpoint = save(engine, config, tokenizer, directory)
    forms = {"plain": StoredAs(), "bf16": StoredAs("bf16", SHARD_BYTES), "fp32": StoredAs("fp32", SHARD_BYTES)}
    found: dict[str, Any] = {}
    for name, stored in forms.items():
        out = directory / name
        agreement = export(checkpoint, config, out, lambda: build_scorer(config, checkpoint), stored=stored)
        hf_model, missing, unknown = load(hf_family_of(config.model), config.model, out)
        assert unknown == []
        values = {key: value.numpy() for key, value in hf_model.state_dict().items() if key not in missing}
        read = folder.read(out).tensors
        dtype = str(AutoModel.from_pretrained(out, dtype="auto").dtype)
        found[name] = (str(agreement), agreement.rounded, values, read, dtype)
    return found


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_shards_and_types_hold_the_weights_of_the_plain_export(family: str, tmp_path: Path) -> None:
    import torch

    found = run_ranks(1, _exports, family, tokenizer_for(family, tmp_path), tmp_path, timeout_s=250)[0]
    plain, bf16, fp32 = (found[name] for name in ("plain", "bf16", "fp32"))
    assert plain[3] == bf16[3] == fp32[3], "names and shapes, by which import checks a folder"
    assert (plain[4], bf16[4], fp32[4]) == ("torch.float32", "torch.bfloat16", "torch.float32")
    for name, value in plain[2].items():
        assert np.array_equal(fp32[2][name], value), name
        rounded = torch.from_numpy(value).bfloat16().float().numpy() if value.dtype == np.float32 else value
        assert np.array_equal(bf16[2][name], rounded), name
    assert plain[1] is None
    assert fp32[1] is None
    dtype, moved = bf16[1]
    assert dtype == "bf16"
    assert moved > 1e-4, "rounded weights move logits by more than the gate allows fp32 ones"
    assert "of the weights stored in bf16" in bf16[0]
    for name in ("bf16", "fp32"):
        index = read_json(tmp_path / name / "model.safetensors.index.json")
        files = sorted({*index["weight_map"].values()})
        assert len(files) > 2
        assert sorted(path.name for path in (tmp_path / name).glob("*.safetensors")) == files
        count = sum(int(np.prod(shape)) for shape in plain[3].values())
        assert index["metadata"]["total_size"] == count * (2 if name == "bf16" else 4)
        for file in files:
            header = (tmp_path / name / file).read_bytes()
            length = int.from_bytes(header[:8], "little")
            tensors = len(json.loads(header[8 : 8 + length])) - 1
            assert len(header) - 8 - length <= SHARD_BYTES or tensors == 1
    assert not (tmp_path / "plain" / "model.safetensors.index.json").exists()
    assert "| weights stored in | bf16 |" in (tmp_path / "bf16" / "README.md").read_text()


def test_a_value_beyond_the_type_is_refused(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from pretrain.interop.hf.repack import StoredAs, repack

    save_file({"small": torch.ones(3), "large": torch.tensor([1.0, 7e4])}, tmp_path / "model.safetensors")
    with pytest.raises(RunError, match="large has values of 7e\\+04, which fp16 cannot hold"):
        repack(tmp_path, StoredAs("fp16"))


@pytest.mark.parametrize(
    ("text", "expected"), [("2GB", 2 * 10**9), ("512 MiB", 2**29), ("1.5kb", 1500), ("7", 7), ("0GB", 0), ("2G", 0)]
)
def test_sizes_are_read_as_transformers_does(text: str, expected: int) -> None:
    from pretrain.interop.hf.repack import size_in_bytes

    if expected:
        assert size_in_bytes(text) == expected
    else:
        with pytest.raises(ValueError, match="is no size"):
            size_in_bytes(text)
