"""A package outside the tree (`package/example_plugin/apertus`) adds a part with parameters of its own: its key, its
rules for layouts, its modules, what a plan counts, and the mapping of its family to a class of transformers, which
judges it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open
from transformers import ApertusForCausalLM

from tests.helpers.datasets import make_documents

ROOT = Path(__file__).parents[2]
BUILD = """
input: in.jsonl
output: data
tokenizer: {vocabulary: 300}
validation_fraction: 0.1
"""
RUN = """
run: {name: apertus, dir: run}
train: {steps: 2}
batch: {sequences: 4, micro_sequences: 2}
model: {family: apertus, layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 48, sequence_length: 32, bias: false,
  activation: gelu, norm_type: rms, qk_norm: true, positions: rotary, vocabulary_multiple: 16}
data: {path: data}
optimizer: {learning_rate: 0.01}
"""
LARGER = "model={hidden: 512, ffn: 2048, heads: 8, layers: 4, sequence_length: 1024, vocabulary: 512}"


def pretrain(plugin: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """`pretrain ARGUMENTS` in a process that finds the package from its start, as an installed one: keys of configs are
    there once for a process."""
    variables = os.environ | {"PYTHONPATH": f"{plugin}:{ROOT}", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "pretrain", *map(str, arguments)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)


def done(plugin: Path, *arguments: object) -> str:
    """What it prints. Raises AssertionError if it fails."""
    found = pretrain(plugin, *arguments)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def workspace(plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of a model that has the part."""
    folder = tmp_path_factory.mktemp("workspace")
    lines = (json.dumps({"text": document}) for document in make_documents(0, 200))
    (folder / "in.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "build.yaml").write_text(BUILD)
    (folder / "run.yaml").write_text(RUN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done(plugin, "data", "build", "build.yaml")
        done(plugin, "train", "run.yaml")
    return folder


@pytest.fixture(autouse=True)
def _inside(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)


def test_it_is_saved_exported_and_imported_with_the_logits_of_transformers(plugin: Path) -> None:
    with safe_open(Path("run/checkpoints/step-00000002/tensors-00000.safetensors"), "np") as tensors:
        alphas = [name for name in tensors.keys() if ".mlp.alpha_" in name]  # noqa: SIM118
    assert len(alphas) == 4 * 3  # in two layers, each with two moments
    assert _difference(done(plugin, "export", "run", "--to", "hf", "exported")) < 3e-6
    model = ApertusForCausalLM.from_pretrained("exported")
    for number, (name, value) in enumerate(model.named_parameters()):
        if "alpha" in name:
            value.data += 0.1 * number
    model.save_pretrained("released")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"exported/{name}", "released")
    assert _difference(done(plugin, "import", "hf", "released", "--out", "imported")) < 3e-6


def _difference(printed: str) -> float:
    return float(printed.split("largest logit difference from transformers ")[1].split()[0])


def test_a_plan_counts_of_it_what_a_rehearsal_does(plugin: Path) -> None:
    asked = ["--gpus", 2, "--hardware", "h100", "parallel.tensor=2", "precision=bf16", LARGER]
    found = json.loads(done(plugin, "rehearse", "run.yaml", *asked, "--ranks", 0, "--json"))["ranks"][0]
    ratios = {one["name"]: one["ratio"] for one in found["against_plan"]}
    assert ratios["peak of a step"] == pytest.approx(1, rel=0.02)
    assert ratios["operations"] == pytest.approx(1, rel=0.01)


def test_keys_list_it_and_others_are_refused_and_have_no_word_of_it(plugin: Path) -> None:
    keys = {key["dotted"]: key for key in json.loads(done(plugin, "keys", "--json"))}
    assert keys["model.xielu.alpha_p"]["default"] == 0.8
    other = ["debug/gpt", "--gpus", 8, "--hardware", "h100"]
    refused = pretrain(plugin, "plan", *other, "model.xielu={}")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "model.xielu is for the apertus family: leave it out for gpt" in refused.stderr
    code = "from pretrain.config.load import *; from pretrain.config.run_config import RunConfig as C; import sys\n"
    code += "print(dump(load(C, sys.argv[1], [])))"
    variables = os.environ | {"PYTHONPATH": f"{plugin}:{ROOT}"}
    shown, with_part = (
        subprocess.run([sys.executable, "-c", code, name], env=variables, capture_output=True, text=True).stdout
        for name in ("debug/gpt", "run.yaml")
    )
    assert "model:" in shown
    assert "xielu" not in shown
    assert "xielu: {alpha_n: 0.8, alpha_p: 0.8}" in with_part


@pytest.mark.slow
def test_any_layout_is_the_same_run(plugin: Path) -> None:
    layouts = "tp2pp1dp1,tp2pp1dp2+sp,tp2pp2dp1+zero2+deepspeed,tp1cp2pp1dp1,tp1pp1dp2+zero3"
    done(plugin, "verify", "run.yaml", "--layouts", layouts, "--steps", 3)
