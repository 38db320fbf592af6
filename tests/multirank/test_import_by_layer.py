"""Imports that hold one layer at a time: the same checkpoint and the same judgement as those of whole models."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from pretrain.errors import ConfigError, RunError
from tests.helpers.hf_folders import changed, tensors
from tests.helpers.hub import COMMIT, serve
from tests.helpers.ranks import run_ranks

SIZE: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "head_dim": 16,
    "intermediate_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 40,
}  # fmt: skip
LATENT: dict[str, Any] = {
    "q_lora_rank": None, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "n_routed_experts": 8, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 16,
    "num_experts_per_tok": 2,
}  # fmt: skip
WORDS = ["abcd efgh ijkl " * 50]
Run = dict[str, str]


def _write(root: Path) -> dict[str, Path]:
    """Folders in bf16, the first of them in several files: all layers alike, of two kinds of attention with tied ends,
    and dense before experts."""
    import torch
    import transformers as hf

    from data_pipeline.tokenizers.load import train_tokenizer

    without_head_dim = {key: value for key, value in SIZE.items() if key != "head_dim"}
    gemma = {"num_hidden_layers": 7, "query_pre_attn_scalar": 16, "sliding_window": 8}
    models: dict[str, Callable[[], Any]] = {
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZE)),
        "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**{**SIZE, **gemma})),
        "deepseek": lambda: hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(**without_head_dim, **LATENT, **EXPERTS)),
    }
    for name, make in models.items():
        torch.manual_seed(0)
        model = make()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, mean=0.02, std=0.1)
        size = "30KB" if name == "llama" else "1GB"
        model.to(torch.bfloat16).save_pretrained(root / name, max_shard_size=size)
    model.float().save_pretrained(root / "fp32")
    tokenizer = train_tokenizer(WORDS, "byte_bpe", 270)
    folders = {name: root / name for name in (*models, "fp32")}
    for folder in folders.values():
        tokenizer.save(folder / "tokenizer.json")
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
    return folders


def _import(folder: Path, run: Path, whole: bool) -> Any:
    """What the gate says."""
    from pretrain.evaluate.opening import build_empty
    from pretrain.interop.hf import by_layer
    from pretrain.interop.hf.imports import import_hf, read_config

    config = read_config(folder, run)
    with patch.object(by_layer, "LARGEST_WHOLE", 2**29 if whole else 0):
        assert by_layer.goes_by_layer(config) is not whole
        return import_hf(folder, config, build_empty(config, by_layer=not whole), lambda line: None)


def _files(run: Path) -> Run:
    """Digests by name."""
    return {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in run.rglob("*")
        if path.is_file()
    }


def _both(folders: dict[str, Path], root: Path) -> dict[str, tuple[Run, Run, str, str]]:
    """Files of the run that either way makes of each folder, and what the gate says."""
    found = {}
    for name, folder in folders.items():
        run = root / "run"
        files, said = [], []
        for whole in (True, False):
            said.append(str(_import(folder, run, whole)))
            files.append(_files(run))
            run.rename(root / f"{name}-{whole}")
        found[name] = (*files, *said)
    return found  # type: ignore[return-value]


def _saved(folder: Path, root: Path) -> tuple[Run, Run]:
    """The files of an imported checkpoint, and of a save of the engine that it filled."""
    from pretrain.checkpoint.saver import Saver
    from pretrain.checkpoint.state import Record
    from pretrain.evaluate.opening import build_empty
    from pretrain.interop.hf.imports import import_hf, read_config
    from pretrain.run_dir.paths import RECORD, TOKENIZER

    config = read_config(folder, root / "imported")
    engine = build_empty(config)
    import_hf(folder, config, engine, lambda line: None)
    imported = root / "imported" / "checkpoints" / "step-00000000"
    with Saver(root / "saved", keep=1, in_flight=0) as saver:
        saver.save(engine.state(), Record.read(imported / RECORD), (imported / TOKENIZER).read_bytes())
    return _files(imported), _files(root / "saved" / "step-00000000")


def _refused(folders: dict[str, Path], root: Path) -> dict[str, str]:
    """The sentence of each import by layer."""
    found = {}
    for name, folder in folders.items():
        with pytest.raises((ConfigError, RunError)) as error:
            _import(folder, root / "runs" / name, whole=False)
        found[name] = str(error.value)
        assert not (root / "runs").exists(), "nothing is left"
    return found


def _on_a_full_disk(folder: Path, root: Path) -> tuple[str, bool, set[str], bool]:
    """What an import says whose last file cannot be written, in a directory where one with a chat template was killed;
    whether it made a checkpoint; the files of the import after it, and whether the temporary directory is left."""
    from pretrain.interop.hf import imports

    run, write = root / "full", imports.atomic_write
    (run / "importing.tmp").mkdir(parents=True)
    (run / "chat_template.jinja").write_text("of another model")

    def fail(path: Path, content: bytes) -> None:
        if path.name == "source_model.json":
            raise OSError("No space left on device")
        write(path, content)

    with patch.object(imports, "atomic_write", fail), pytest.raises(RunError) as error:
        _import(folder, run, whole=False)
    has_checkpoint = any(run.glob("checkpoints/*"))
    _import(folder, run, whole=False)
    return str(error.value), has_checkpoint, set(_files(run)), (run / "importing.tmp").exists()


def _with_layers_swapped(folder: Path, root: Path) -> str:
    """What the gate says of a checkpoint with the first layer in place of the second, and the other way round."""
    from pretrain.interop.hf import streaming

    right, others = streaming.reader, {"layers.0.": "layers.1.", "layers.1.": "layers.0."}

    def wrong(*arguments: Any) -> Any:
        def read(names: Sequence[str]) -> Any:
            swapped = {name: name for name in names}
            for layer, other in others.items():
                swapped |= {name: name.replace(layer, other) for name in names if layer in name}
            values = right(*arguments)(list(swapped.values()))
            return {name: values[other] for name, other in swapped.items()}

        return read

    with patch.object(streaming, "reader", wrong), pytest.raises(RunError) as error:
        _import(folder, root / "swapped", whole=False)
    return str(error.value)


def _held(folder: Path, run: Path) -> tuple[list[set[str]], list[int], int]:
    """For each time that our engine reads weights, the layers that they belong to ("": none) and the number of values
    that it holds then; and the number of values in all layers."""
    from pretrain.evaluate.opening import build_empty
    from pretrain.interop.hf.gate import our_answers, rows_for
    from pretrain.interop.hf.imports import read_config

    config = read_config(folder, run)
    engine: Any = build_empty(config, by_layer=True)
    state = {name: part.shape for name, part in engine.state().items()}
    layers, held = [], []

    def load(part: dict[str, Any]) -> None:
        layers.append({name.partition("layers.")[2].partition(".")[0] for name in part})
        held.append(sum(parameter.value.numel() for parameter in engine.parameters))
        for one in part.values():
            one.pieces[0].value.fill_(0.01)

    with engine.weights_on_demand(load):
        our_answers(engine, config.model, rows_for(config))
    assert not any(parameter.value.numel() for parameter in engine.parameters)
    return layers, held, sum(int(np.prod(shape)) for name, shape in state.items() if "layers." in name)


def _moved(folder: Path, root: Path) -> dict[bool, tuple[float, float]]:
    """Difference and limit where no difference needs no reason, of a whole model or not."""
    from pretrain.interop.hf import gate

    found = {}
    with patch.object(gate, "GATE", 0.0):
        for whole in (True, False):
            agreement = _import(folder, root / f"moved-{whole}", whole)
            found[whole] = agreement.difference, agreement.limit
    return found


def _from_hub(url: str, root: Path) -> tuple[str, str]:
    """The name of the run, and what its record says of where it's from."""
    from huggingface_hub import constants

    from pretrain.checkpoint.state import Record
    from pretrain.commands import import_

    constants.ENDPOINT, constants.HF_HUB_CACHE = url, str(root / "cache")  # as the variables set them in a command
    constants.HUGGINGFACE_CO_URL_TEMPLATE = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    assert import_.main(["hf", "org/small-llama", "--revision", "main", "--out", str(root / "from-hub")]) == 0
    record = Record.read(root / "from-hub" / "checkpoints" / "step-00000000" / "record.json")
    return record.config["run"]["name"], record.layout


class Found:
    """Everything, of one process: each would import transformers, which takes seconds."""

    def __init__(self, root: Path, hub_url: str) -> None:
        self.folders = folders = _write(root)
        before = _files(folders["fp32"])
        self.both = _both(folders, root)
        self.saved = _saved(folders["deepseek"], root)
        self.held = _held(folders["llama"], root / "held")
        weight = "model.layers.1.mlp.gate_proj.weight"  # of a dense layer
        nan = tensors(lambda values: values["model.norm.weight"].fill_(float("nan")))
        more = tensors(lambda values: values.update({weight: values["model.norm.weight"].clone()}))
        changes = {"nan": nan, "more": more}
        broken = {name: changed(folders["fp32"], root / name, change) for name, change in changes.items()}
        self.refused = {name: said.removeprefix(f"{broken[name]}") for name, said in _refused(broken, root).items()}
        self.full = _on_a_full_disk(folders["fp32"], root)
        self.swapped = _with_layers_swapped(folders["llama"], root)
        self.moved = _moved(folders["fp32"], root)
        self.changes_folder = _files(folders["fp32"]) != before
        self.from_hub = _from_hub(hub_url, root)
        self.num_files = len(list(folders["llama"].glob("*.safetensors")))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    root = tmp_path_factory.mktemp("imports")
    with serve() as hub:
        hub.models = {"org/small-llama": {COMMIT: root / "llama"}}
        return run_ranks(1, Found, root, hub.url)[0]


def test_a_model_by_layers_becomes_the_same_run_as_a_whole_one(found: Found) -> None:
    assert found.num_files > 2
    for name, (whole, by_layer, first, second) in found.both.items():
        assert whole == by_layer, name
        assert set(by_layer) == {
            "config.yaml",
            "source_model.json",
            *(f"checkpoints/step-00000000/{file}" for file in ("manifest.json", "record.json", "tokenizer.model")),
            "checkpoints/step-00000000/tensors-00000.safetensors",
        }
        assert float(first.split()[5]) <= 1e-4, first
        assert second == f"{first} (all layers computed, with one in memory at a time)"


def test_a_checkpoint_appears_when_all_else_is_written(found: Found) -> None:
    """Its ends and names of special tokens stand beside it: one without them would lose them in silence."""
    said, has_checkpoint, files, is_left = found.full
    assert said.endswith("cannot be written (No space left on device)")
    assert not has_checkpoint
    assert files == set(found.both["fp32"][0]), "nothing of the import before it"
    assert not is_left


def test_an_imported_checkpoint_is_what_a_save_writes(found: Found) -> None:
    imported, saved = found.saved
    assert imported == saved


def test_a_layer_is_read_when_it_computes_and_given_up(found: Found) -> None:
    layers, held, in_layers = found.held
    assert layers == [{""}, *[{"0"}, {"1"}, {"2"}] * 2]  # each of two rows by itself
    assert max(held[1:]) - held[0] <= in_layers / 3 + 32  # and the final norm


def test_layers_in_another_order_and_folders_that_are_broken_are_refused(found: Found) -> None:
    """Nothing is left of them. The checkpoint with layers in another order has all the right tensors."""
    assert found.refused["nan"] == ": model.norm.weight has values that are no finite numbers"
    assert found.refused["more"] == (
        " has a tensor that the model has no place for, model.layers.1.mlp.gate_proj.weight: it is not the model that "
        "its config.json says"
    )
    assert found.swapped.startswith("not imported: logits differ by ")


def test_the_limit_of_rounding_is_measured_layer_by_layer(found: Found) -> None:
    """Weights that are moved are not those on the disk, though the folder is in fp32 and mapped into memory."""
    for difference, limit in found.moved.values():
        assert 0 < difference <= limit
    assert found.moved[True][0] == found.moved[False][0]
    assert 0.2 < found.moved[False][1] / found.moved[True][1] < 5
    assert not found.changes_folder


def test_a_name_on_the_hub_is_imported_and_recorded_with_its_commit(found: Found) -> None:
    assert found.from_hub == ("small-llama", f"imported from org/small-llama at {COMMIT}")
