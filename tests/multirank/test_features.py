"""Hidden states are those of transformers, and features of texts are the same on every layout and in batches of any
size."""

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from data_pipeline.tokenizers.specials import Specials
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Stack
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.errors import ConfigError, RunError
from pretrain.evaluate.feature_request import FeatureRequest, LayerChoice, Texts
from tests.helpers.breadth import only, slow
from tests.helpers.families import family_config
from tests.helpers.hf import randomise, save, tokenizer_for, with_weights_of
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, tiny_config

VOCABULARY = 390
SPECIALS = Specials(pad=1, cls=0, sep=2, mask=3, start=1, end=2, sentinels=(), vocabulary=VOCABULARY)
GPT = {"gpt": {}, "gpt-post": {"norm": "post"}}
TOLERANCE = 1e-5
"""Error of hidden states in fp32, relative to the largest if that is above 1."""
TEXTS = ["abcd", "efgh ijkl abcd", "ijkl efgh", "abcd efgh ijkl abcd efgh", "efgh", "abcd abcd", "ijkl abcd efgh " * 4]
"""One of them makes rows of 32 positions, the others rows of 16 if it is not in their batch."""
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "tp2": (2, {"tensor": 2}),
    "tp2+sp": (2, {"tensor": 2, "sequence": True}),
    "pp2": (2, {"pipeline": 2}),
    "pp2+vp2": (2, {"pipeline": 2, "virtual": 2}),
    "cp2": (2, {"context": 2}),
    "dp2": (2, {}),
    "dp4": (4, {}),
    "tp2cp2": (4, {"tensor": 2, "context": 2}),
    "pp2dp2": (4, {"pipeline": 2}),
}


def _config(family: str, parallel: dict[str, Any]) -> RunConfig:
    if family in GPT:
        model = {"vocabulary": VOCABULARY, "attention": {}} | GPT[family]
        return tiny_config(model=model, parallel=parallel)
    return family_config(family, model={"vocabulary": VOCABULARY}, parallel=parallel)


def _request(layers: str = "last", pool: Any = "mean", **settings: Any) -> FeatureRequest:
    defaults: dict[str, Any] = {"stack": None, "truncate": False, "batch": None}
    return FeatureRequest(layers=LayerChoice.parse(layers), pool=pool, **(defaults | settings))


def _texts(texts: list[str]) -> Texts:
    return Texts(Path("texts.txt"), range(1, len(texts) + 1), texts)


# What runs on ranks. transformers takes seconds to import: only where it is needed.


def _states(family: str, stack: Stack) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ours, theirs) of every layer, where there is no padding."""
    from pretrain.interop.hf.gate import rows_for
    from pretrain.interop.hf.hf_answers import hf_logits

    config = _config(family, {})
    engine = build_engine(config, train=False)
    randomise(engine)
    theirs, _ = with_weights_of(engine, config, SPECIALS)
    batch = rows_for(config)
    outputs: list[Any] = []
    theirs.register_forward_hook(lambda model, inputs, output: outputs.append(output))
    for module in theirs.modules():
        if hasattr(module, "config"):  # stacks have copies
            module.config.output_hidden_states = True
    hf_logits(theirs, batch, config.model.position_offset)
    name = f"{stack}_hidden_states" if config.model.is_encoder_decoder else "hidden_states"
    expected = [state.numpy() for state in outputs[0][name]]
    encoder_layers, decoder_layers = config.model.stacks
    layers = encoder_layers if stack == "encoder" else decoder_layers
    assert len(expected) == layers + 1
    shown = np.ones(batch.tokens.shape, np.bool_) if batch.attention_mask is None else batch.attention_mask
    if stack == "encoder" and config.model.has_decoder:
        batch = replace(batch, decoder_tokens=None, labels=batch.tokens, loss_mask=shown.astype(np.float32))
    elif config.model.has_encoder and stack == "decoder":
        shown = np.ones(batch.labels.shape, np.bool_)
    ours = engine.hidden_states(batch, stack, range(layers + 1), pooled=False)
    return [(ours[:, :, layer][shown], expected[layer][shown]) for layer in range(layers + 1)]


def _of_a_decoder(checkpoint: Path, out: Path) -> list[np.ndarray]:
    """Features of BART's decoder go to a file; transformers' decoder states of each text, given its ids alone."""
    import torch

    from data_pipeline.tokenizers.load import load_tokenizer
    from pretrain.evaluate.features import encode, write_features
    from pretrain.evaluate.opening import build_scorer

    config, texts = _config("bart", {}), _texts(TEXTS[:-1])
    write_features(config, checkpoint, texts, _request("last", "token", stack="decoder"), out)
    tokenizer = load_tokenizer(checkpoint / "tokenizer.model")
    engine = build_scorer(config, checkpoint)
    assert isinstance(engine, MegatronEngine)
    theirs, _ = with_weights_of(engine, config, config.objective.specials(tokenizer))
    ids = encode(config, tokenizer, texts, "decoder", truncate=False).ids
    with torch.no_grad():
        return [theirs.model(input_ids=torch.from_numpy(row)[None]).last_hidden_state[0].numpy() for row in ids]


def _write_checkpoint(family: str, tokenizer: Path, directory: Path) -> None:
    config = _config(family, {})
    engine = build_engine(config)
    randomise(engine)
    save(engine, config, tokenizer, directory)


def _features(
    family: str, parallel: dict[str, Any], checkpoint: Path, texts: list[str], requests: dict[str, FeatureRequest],
    directory: Path,
) -> None:  # fmt: skip
    from pretrain.evaluate.features import write_features

    for name, request in requests.items():
        write_features(_config(family, parallel), checkpoint, _texts(texts), request, directory / f"{name}.safetensors")


def _features_to(family: str, checkpoint: Path, request: FeatureRequest, out: Path) -> None:
    """In pieces of two or three texts."""
    from pretrain.evaluate import features

    features._PIECE_VALUES = 3000
    features.write_features(_config(family, {}), checkpoint, _texts(TEXTS), request, out)


def _not_a_number(checkpoint: Path, out: Path) -> str:
    """The error where the last data rank's states are not numbers."""
    from pretrain.evaluate.features import write_features

    def states(engine: MegatronEngine, *arguments: Any, **settings: Any) -> np.ndarray:
        found = compute(engine, *arguments, **settings)
        return found * np.nan if engine.data_rank == engine.data_world - 1 else found

    compute, MegatronEngine.hidden_states = MegatronEngine.hidden_states, states  # type: ignore[method-assign]
    with pytest.raises(RunError) as error:
        write_features(_config("bert", {}), checkpoint, _texts(TEXTS), _request(), out)
    return str(error.value)


def _refused(family: str, checkpoint: Path, texts: list[str], out: Path) -> str:
    from pretrain.evaluate.features import write_features

    with pytest.raises(ConfigError) as error:
        write_features(_config(family, {}), checkpoint, _texts(texts), _request(), out)
    return str(error.value)


# The tests.


def _checkpoint(family: str, directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    run_ranks(1, _write_checkpoint, family, tokenizer_for(family, directory), directory / "checkpoints")
    return directory / "checkpoints" / "step-00000000"


@pytest.mark.parametrize(
    ("family", "stack"),
    [
        *((name, "encoder") for name in ("bert", "t5", "bart", "albert")),
        *((name, "decoder") for name in ("gpt", "gpt-post", "llama", "gemma", "t5", "bart")),
        *(slow((name, "encoder")) for name in ("roberta", "roformer", "tlm", "transformer")),
        *(slow((name, "decoder")) for name in ("bloom", "ctrl")),
    ],
)
def test_hidden_states_of_every_layer_are_those_of_transformers(family: str, stack: Stack) -> None:
    states = run_ranks(1, _states, family, stack)[0]
    for layer, (ours, expected) in enumerate(states):
        assert ours.shape == expected.shape
        assert np.abs(ours - expected).max() <= TOLERANCE * max(1.0, np.abs(expected).max()), layer


SHARED = ["bert", "bart", "t5", "gpt", "prefix-lm"]
QUICK = [
    ("bert", "dp4"), ("bart", "tp2cp2"), ("t5", "pp2"), ("gpt", "cp2"),
]  # fmt: skip


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: _checkpoint(family, tmp_path_factory.mktemp("runs") / family) for family in SHARED}


def _requests(family: str) -> dict[str, FeatureRequest]:
    requests = {
        "tokens": _request("all", "token"),
        "mean": _request("concat:2", "mean"),
        "first": _request("sum", "first"),
        "last": _request("0,1", "last"),
    }
    if family in ("bart", "t5"):
        requests["decoder"] = _request("all", "token", stack="decoder", truncate=True)
    return requests


@pytest.fixture(scope="module")
def on_one_rank(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories with the features of one rank."""
    directories = {}
    for family in SHARED:
        directories[family] = tmp_path_factory.mktemp(family)
        run_ranks(1, _features, family, {}, checkpoints[family], TEXTS, _requests(family), directories[family])
    return directories


def _compare(directory: Path, expected_directory: Path, names: list[str]) -> None:
    for name in names:
        found = load_file(directory / f"{name}.safetensors")
        expected = load_file(expected_directory / f"{name}.safetensors")
        assert found.keys() == expected.keys()
        for key in found:
            if key != "vectors":
                assert np.array_equal(found[key], expected[key]), (name, key)
        largest = max(1.0, np.abs(expected["vectors"]).max())
        assert found["vectors"].shape == expected["vectors"].shape
        assert np.abs(found["vectors"] - expected["vectors"]).max() <= TOLERANCE * largest, name


@pytest.mark.parametrize(("family", "layout"), only(QUICK, product(SHARED, LAYOUTS)))
def test_features_are_the_same_on_every_layout(
    family: str, layout: str, checkpoints: dict[str, Path], on_one_rank: dict[str, Path], tmp_path: Path
) -> None:
    """Seven texts of several lengths, which data ranks cannot share evenly."""
    ranks, parallel = LAYOUTS[layout]
    requests = _requests(family)
    run_ranks(ranks, _features, family, parallel, checkpoints[family], TEXTS, requests, tmp_path)
    _compare(tmp_path, on_one_rank[family], list(requests))


def test_data_ranks_without_a_text_wait_for_the_others(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    requests = {"tokens": _request("all", "token")}
    for directory, ranks in ((alone, 1), (shared, 4)):
        directory.mkdir()
        run_ranks(ranks, _features, "bert", {}, checkpoints["bert"], TEXTS[:1], requests, directory)
    _compare(shared, alone, ["tokens"])


@pytest.mark.parametrize("batch", [1, slow(2), 5, slow(100)])
def test_batches_of_any_size_have_the_same_features(
    batch: int, checkpoints: dict[str, Path], on_one_rank: dict[str, Path], tmp_path: Path
) -> None:
    """Padding changes nothing: a batch of one text has none but that of the row."""
    for family in ("bert", "gpt"):
        directory = tmp_path / family
        directory.mkdir()
        requests = {name: replace(request, batch=batch) for name, request in _requests(family).items()}
        run_ranks(1, _features, family, {}, checkpoints[family], TEXTS, requests, directory)
        _compare(directory, on_one_rank[family], list(requests))


@pytest.mark.parametrize("family", SHARED)
def test_pools_and_layers_are_made_of_the_vectors_of_tokens(family: str, on_one_rank: dict[str, Path]) -> None:
    """Means are those of ordinary tokens; special ones are counted by no mean."""
    files = {path.stem: load_file(path) for path in on_one_rank[family].iterdir()}
    tokens, offsets = files["tokens"], files["tokens"]["offsets"]
    assert tokens["lines"].tolist() == list(range(1, len(TEXTS) + 1))
    layers = tokens["vectors"].shape[1] - 1
    for text, (begin, end) in enumerate(pairwise(offsets)):
        states, special = tokens["vectors"][begin:end], tokens["special"][begin:end]
        expected_special = {"gpt": [], "bert": [0, -1], "bart": [0, -1]}.get(family, [-1])
        assert np.flatnonzero(special).tolist() == [index % len(special) for index in expected_special]
        ordinary = states[~special].mean(axis=0)
        for found, expected in (
            (files["mean"], np.concatenate([ordinary[layers - 1], ordinary[layers]])),
            (files["first"], states[0, 1:].sum(axis=0)),
            (files["last"], states[-1, :2]),
        ):
            largest = max(1.0, np.abs(expected).max())
            assert np.abs(found["vectors"][text] - expected).max() <= TOLERANCE * largest


def test_tokens_and_metadata_name_what_was_read(checkpoints: dict[str, Path], on_one_rank: dict[str, Path]) -> None:
    from data_pipeline.tokenizers.load import load_tokenizer

    tokenizer = load_tokenizer(checkpoints["gpt"] / "tokenizer.model")
    with safe_open(on_one_rank["gpt"] / "tokens.safetensors", "np") as file:
        ids, offsets = file.get_tensor("token_ids"), file.get_tensor("offsets")
        metadata = file.metadata()
    decoded = [tokenizer.decode(ids[a:b].tolist()).strip() for a, b in pairwise(offsets)]
    assert decoded == [text.strip() for text in TEXTS]
    assert metadata["checkpoint"] == str(checkpoints["gpt"])
    assert {name: metadata[name] for name in ("stack", "layers", "layer_numbers", "pool", "truncated")} == {
        "stack": "decoder", "layers": "all", "layer_numbers": "0,1,2,3,4", "pool": "token", "truncated": "0",
    }  # fmt: skip


def test_a_decoder_reads_what_transformers_makes_of_the_ids(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """The ids, shifted right by one, behind the decoder's start."""
    expected = np.concatenate(run_ranks(1, _of_a_decoder, checkpoints["bart"], tmp_path / "a.safetensors")[0])
    found = load_file(tmp_path / "a.safetensors")["vectors"]
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_a_long_text_is_refused_by_line_and_cut_on_request(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    long = " ".join(["abcd efgh"] * 40)
    said = run_ranks(1, _refused, "bert", checkpoints["bert"], ["abcd", long], tmp_path / "a.safetensors")[0]
    assert said.startswith("texts.txt line 2 is ")
    assert "and the model reads 32: shorten it, or cut long texts with --truncate" in said
    assert list(tmp_path.iterdir()) == []
    requests = {"cut": _request("last", "token", truncate=True)}
    run_ranks(1, _features, "bert", {}, checkpoints["bert"], ["abcd", long], requests, tmp_path)
    cut = load_file(tmp_path / "cut.safetensors")
    assert cut["offsets"][2] - cut["offsets"][1] == 32
    assert np.flatnonzero(cut["special"][cut["offsets"][1] :]).tolist() == [0, 31]


def test_states_that_are_not_numbers_leave_no_file(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    said = run_ranks(2, _not_a_number, checkpoints["bert"], tmp_path / "a.safetensors")
    assert said == ["the model's hidden states are not numbers: it diverged, or its checkpoint is damaged"] * 2
    assert list(tmp_path.iterdir()) == []


def test_parquet_holds_what_safetensors_holds(
    checkpoints: dict[str, Path], on_one_rank: dict[str, Path], tmp_path: Path
) -> None:
    from pyarrow import parquet

    for name, request in _requests("bert").items():
        run_ranks(1, _features_to, "bert", checkpoints["bert"], request, tmp_path / f"{name}.parquet")
        expected = load_file(on_one_rank["bert"] / f"{name}.safetensors")
        table = parquet.read_table(tmp_path / f"{name}.parquet")
        assert table["line"].to_pylist() == expected["lines"].tolist()
        if name == "tokens":
            for column, key in (("vectors", "vectors"), ("token_ids", "token_ids"), ("special", "special")):
                values = [value for row in table[column].to_pylist() for value in row]
                assert np.array_equal(np.array(values, expected[key].dtype), expected[key])
            assert np.diff(expected["offsets"]).tolist() == [len(row) for row in table["token_ids"].to_pylist()]
        else:
            assert np.array_equal(np.array(table["vector"].to_pylist(), np.float32), expected["vectors"])
        assert table.schema.metadata[b"layers"].decode() == request.layers.text
