"""A folder of Hugging Face's format with more ids: which tensors grow, what their new rows are, and what stays."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from data_pipeline.tokenizers.load import train_tokenizer
from pretrain.errors import ConfigError
from pretrain.interop.hf.grow import NewIds, NewRows, grow_rows, grown_folder
from tests.helpers.hf_folders import WEIGHTS, config, tensors, write

IDS, ROWS, NEW = 270, 300, 40
TOKENS = [f" lymph{number}" for number in range(NEW)]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
SETTINGS = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "unk_token": "<unk>"}


@pytest.fixture(scope="module")
def llamas(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An untied one in bf16 and a tied one, with 300 rows and a tokenizer of 270 ids, and a list of tokens."""
    import transformers as hf

    root = tmp_path_factory.mktemp("llamas")
    (root / "new.txt").write_text("\n".join(TOKENS))
    for name, tied, dtype in (("untied", False, torch.bfloat16), ("tied", True, torch.float32)):
        torch.manual_seed(1)
        sizes = {"vocab_size": ROWS, "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2}
        settings = hf.LlamaConfig(**sizes, intermediate_size=64, max_position_embeddings=40, tie_word_embeddings=tied)
        model = hf.LlamaForCausalLM(settings).to(dtype)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, mean=0.02, std=0.1)
        model.save_pretrained(root / name, max_shard_size="40KB")
        train_tokenizer(["abcd efgh ijkl " * 50], "byte_bpe", IDS).save(root / name / "tokenizer.json")
        (root / name / "tokenizer_config.json").write_text(json.dumps(SETTINGS))
        (root / name / "chat_template.jinja").write_text("{{ messages }}")
    return {"file": root / "new.txt", **{name: root / name for name in ("untied", "tied")}}


def values(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for path in folder.glob("*.safetensors") for name, value in load_file(path).items()}


@pytest.mark.parametrize("new_rows", ["pieces", "distribution"])
@pytest.mark.parametrize("kind", ["untied", "tied"])
def test_both_ends_grow_and_all_else_is_as_it_was(llamas: dict[str, Path], kind: str, new_rows: NewRows) -> None:
    import transformers as hf

    before, said = values(llamas[kind]), list[str]()
    with grown_folder(llamas[kind], llamas["file"], new_rows, said.append) as folder:
        after, settings = values(folder), json.loads((folder / "config.json").read_text())
        assert hf.AutoTokenizer.from_pretrained(folder)("a lymph7 b")["input_ids"][-3] == IDS + 7
        assert (folder / "chat_template.jinja").read_text() == "{{ messages }}"
        theirs = hf.AutoModelForCausalLM.from_pretrained(folder)
        assert theirs.get_output_embeddings().weight.shape == (IDS + NEW, 32)
    assert not folder.exists()
    source = json.loads((llamas[kind] / "config.json").read_text())
    assert settings == source | {"vocab_size": IDS + NEW}
    assert after.keys() == before.keys()
    ends = [EMBEDDING] if kind == "tied" else [EMBEDDING, HEAD]
    assert [name for name in after if after[name].shape != before[name].shape] == ends
    for name, value in before.items():
        assert after[name].dtype == value.dtype
        assert torch.equal(after[name][: IDS if name in ends else None], value[: IDS if name in ends else None])
    ids = torch.tensor(train_tokenizer(["abcd efgh ijkl " * 50], "byte_bpe", IDS).encode(TOKENS[3]))
    for name in ends:
        if new_rows == "pieces":
            expected = before[name][ids].float().mean(0).to(before[name].dtype)
            assert torch.equal(after[name][IDS + 3], expected)
        else:  # within one unit in the last place of bf16
            mean = before[name][:IDS].float().mean(0)
            assert (after[name][IDS:].float() - mean).abs().max() < (1e-4 if kind == "tied" else 1e-3)
    assert "40 new tokens have the ids 270 to 309" in said
    assert any(line.startswith("30 of them have rows that no token used before") for line in said)
    assert ("mean_resizing" in said[-1]) == (new_rows == "distribution")


def test_rows_that_suffice_stay_as_many(llamas: dict[str, Path], tmp_path: Path) -> None:
    import transformers as hf

    (tmp_path / "new.txt").write_text("\n".join([*TOKENS[:4], json.dumps({"content": "<|tool|>", "special": True})]))
    before = values(llamas["tied"])[EMBEDDING]
    with grown_folder(llamas["tied"], tmp_path / "new.txt", "pieces", lambda line: None) as folder:
        after = values(folder)[EMBEDDING]
        assert hf.AutoTokenizer.from_pretrained(folder)("a<|tool|>")["input_ids"][-1] == IDS + 4
    rows = torch.arange(ROWS)
    is_new = (rows >= IDS) & (rows < IDS + 5)
    assert torch.equal(after[~is_new], before[~is_new])
    assert not (after[is_new] == before[is_new]).any()


def test_a_decoder_without_a_head_grows_where_a_random_one_is_asked_for(tmp_path: Path) -> None:
    folder, file = write("deepseek", tmp_path / "deepseek"), tmp_path / "new.txt"
    (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS))
    tensors(lambda found: found.pop(HEAD))(folder)
    file.write_text("\n".join(TOKENS))
    with pytest.raises(ConfigError, match=HEAD), grown_folder(folder, file, "pieces", lambda line: None):
        pass
    with grown_folder(folder, file, "pieces", lambda line: None, random_head=True) as grown:
        found = values(grown)
    assert found[EMBEDDING].shape == (IDS + NEW, 32)
    assert HEAD not in found


def test_draws_have_mean_and_covariance_of_all_rows() -> None:
    torch.manual_seed(0)
    rows = torch.randn(500, 4) @ torch.randn(4, 4) + torch.randn(4)
    ids = NewIds(500, 20_500, 400, dict.fromkeys(range(500, 20_500), ()))
    drawn = grow_rows(rows.double(), 0, ids)[500:]  # in fp32, differences from the mean would be rounded
    used = rows[:400].double()
    assert torch.allclose(drawn.mean(0), used.mean(0), atol=1e-6)
    expected = 1e-9 * torch.cov(used.T, correction=0)
    assert (torch.cov(drawn.T) - expected).abs().max() < 0.05 * expected.abs().max()


def test_unknown_text_is_drawn_and_other_axes_grow() -> None:
    bias = torch.arange(6.0)[None]
    ids = NewIds(6, 9, 4, {6: (0, 1), 7: (), 8: (3,)})
    grown = grow_rows(bias, 1, ids)
    assert grown.shape == (1, 9)
    assert torch.equal(grown[0, :7], torch.tensor([0.0, 1, 2, 3, 4, 5, 0.5]))
    assert abs(grown[0, 7] - 1.5) < 1e-3
    assert grown[0, 8] == 3
    assert torch.equal(grow_rows(bias.clone(), 1, ids), grown), "copies of a tensor stay copies"


@pytest.mark.parametrize("kind", ["bert", "bert-classes", "deepseek", "gemma3"])
def test_transformers_says_which_tensors_grow(kind: str, tmp_path: Path) -> None:
    folder, file = write(kind, tmp_path / kind), tmp_path / "new.txt"
    (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS | {"tokenizer_class": "TokenizersBackend"}))
    file.write_text("\n".join(TOKENS))
    before = values(folder)
    with grown_folder(folder, file, "pieces", lambda line: None) as grown, safe_open(grown / WEIGHTS, "pt") as opened:
        found = {name for name in before if opened.get_slice(name).get_shape() != list(before[name].shape)}
    word = "bert.embeddings.word_embeddings.weight"
    assert found == {
        "bert": {word, "cls.predictions.bias"},
        "bert-classes": {word},
        "deepseek": {EMBEDDING, HEAD},
        "gemma3": {f"language_model.{EMBEDDING}"},  # of text and pictures
    }[kind]  # fmt: skip


WORDS = "transformer.wte.weight"


def test_ids_that_settings_alone_name_come_first_and_get_rows(tmp_path: Path) -> None:
    folder, said = write("gpt2", tmp_path / "gpt2"), list[str]()
    config(vocab_size=IDS)(folder)
    tensors(lambda values: values.update({WORDS: values[WORDS][:IDS]}))(folder)
    settings = {**SETTINGS, "added_tokens_decoder": {str(IDS): {"content": "[PAD]", "special": True}}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "new.txt").write_text("\n".join(TOKENS))
    with grown_folder(folder, tmp_path / "new.txt", "pieces", said.append) as grown:
        listed = json.loads((grown / "tokenizer_config.json").read_text())["added_tokens_decoder"]
        assert values(grown)[WORDS].shape == (IDS + 1 + NEW, 32)
        assert values(grown)[WORDS][IDS].abs().max() > 0
    assert listed[str(IDS + 1)]["content"] == TOKENS[0]
    assert "40 new tokens have the ids 271 to 310" in said
    assert "1 ids of the tokenizer had no row: they have rows like tokens of unknown text" in said


def test_folders_whose_ids_cannot_be_followed_are_refused(tmp_path: Path) -> None:
    folder = write("gpt2", tmp_path / "gpt2")
    (tmp_path / "new.txt").write_text("\n".join(TOKENS))
    (folder / "tokenizer_config.json").write_text(json.dumps({**SETTINGS, "sentinel_ids": "last"}))
    with (
        pytest.raises(ConfigError, match="the last ids are sentinels"),
        grown_folder(folder, tmp_path / "new.txt", "pieces", lambda line: None),
    ):
        pass
