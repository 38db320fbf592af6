"""A model with added tokens, from a folder through a run into an export that transformers reads alike."""

import json
from pathlib import Path
from typing import Any

from data_pipeline.tokenizers.load import train_tokenizer
from tests.helpers.ranks import run_ranks

TEXTS = ["a lymphoma b", "lymphatic lymph lymphoma\n lymphoma", "caf\u00e9 caf\u00e9 \u4e2d\u6587abcd", "<|tool|> efgh"]
LINES = [" lymphoma", "lymph", " caf\u00e9", "\u4e2d\u6587", json.dumps({"content": "<|tool|>", "special": True})]


def _there_and_back(root: Path) -> Any:
    """(ids of texts by transformers: of the folder with `add_tokens`, of the export; by the run's tokenizer;
    whether both ends have the rows of the folder, and new ones)"""
    import transformers as hf
    from safetensors.torch import load_file
    from tokenizers import AddedToken

    from data_pipeline.tokenizers.load import load_tokenizer
    from pretrain.checkpoint.state import Record, config_of
    from pretrain.commands import import_
    from pretrain.evaluate.opening import build_scorer
    from pretrain.interop.hf.export import export
    from pretrain.run_dir.paths import RECORD

    folder, run, exported, file = root / "folder", root / "run", root / "exported", root / "new.txt"
    sizes = {"vocab_size": 270, "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, intermediate_size=64, max_position_embeddings=40))
    model.save_pretrained(folder)
    train_tokenizer(["abcd efgh ijkl " * 50], "byte_bpe", 270).save(folder / "tokenizer.json")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    file.write_text("\n".join(LINES))
    assert import_.main(["hf", str(folder), "--add-tokens", str(file), "--out", str(run)]) == 0
    checkpoint = run / "checkpoints" / "step-00000000"
    config = config_of(Record.read(checkpoint / RECORD))
    export(checkpoint, config, exported, lambda: build_scorer(config, checkpoint))
    theirs = hf.AutoTokenizer.from_pretrained(folder)
    theirs.add_tokens([*LINES[:-1], AddedToken("<|tool|>", special=True)])
    read, ours = hf.AutoTokenizer.from_pretrained(exported), load_tokenizer(exported / "original" / "tokenizer.json")
    read.split_special_tokens = False
    before, after = (load_file(path / "model.safetensors") for path in (folder, exported))
    ends = [(before[name], after[name]) for name in ("model.embed_tokens.weight", "lm_head.weight")]
    return (
        [theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS],
        [read(text, add_special_tokens=False)["input_ids"] for text in TEXTS],
        [ours.encode(text) for text in TEXTS[:-1]],
        all((new[:270] == old).all() and new[270:275].abs().min() > 0 and len(new) == 275 for old, new in ends),
    )


def test_added_tokens_go_into_the_run_and_out_with_its_export(tmp_path: Path) -> None:
    theirs, exported, ours, grown = run_ranks(1, _there_and_back, tmp_path)[0]
    assert theirs == exported
    assert theirs[:-1] == ours
    assert set(range(270, 275)) <= {index for ids in theirs for index in ids}
    assert grown
