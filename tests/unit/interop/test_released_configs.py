"""config.json of released models: each is read, none of its fields is refused, and what is not continued is named.
`released_configs.json` has the fields of files from many versions of transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

CONFIGS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("released_configs.json").read_text())
SAID = {
    "DeepSeek-V2-Lite": "auto_map",
    "DeepSeek-V3": "fp8",
    "gemma-3-4b-it": "text model",
    "gemma-3-27b-it": "text model",
    "bart-base": "activation_dropout",
    "pegasus-xsum": "activation_dropout",
    "kanana-nano-2.1b-base": "as a mistral",
}
"""what is said of fields that are known; of others, that they are ignored"""


@pytest.mark.parametrize("name", CONFIGS)
def test_a_released_config_is_read(name: str, tmp_path: Path) -> None:
    from pretrain.interop.hf import folder as folders

    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    save_file({str(number): torch.zeros(1) for number in range(300)}, tmp_path / "model.safetensors")
    folder = folders.read(tmp_path)
    said = [note for note in folder.notes if not note.endswith("does not read: ignored")]
    assert bool(said) == (name in SAID)
    assert SAID.get(name, "") in " ".join(said)
    tree = CONFIGS[name].get("text_config", CONFIGS[name])
    layers = tree.get("num_hidden_layers") or tree.get("n_layer") or tree.get("num_layers") or tree.get("n_layers")
    assert layers in (folder.section["layers"], folder.section.get("encoder_layers"))
