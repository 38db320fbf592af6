"""Models, tokenizers and data that the tests of a session share."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel

from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.dataset.dataset import Dataset
from pretrain.evaluate.tasks.arithmetic import document
from tests.unit.evaluate.fakes import VOCABULARY, FakeEngine, Silent, ToyTokenizer, random_model


@pytest.fixture(scope="session")
def model() -> GPT2LMHeadModel:
    return random_model()


@pytest.fixture
def engine(model: GPT2LMHeadModel) -> FakeEngine:
    return FakeEngine(model)


@pytest.fixture(scope="session")
def tokenizer() -> ToyTokenizer:
    return ToyTokenizer()


@pytest.fixture(scope="session")
def learned(tokenizer: ToyTokenizer) -> GPT2LMHeadModel:
    """A model that knows the answers of the first 12 generated arithmetic_1dc documents by heart."""
    examples = [document("arithmetic_1dc", index, 0) for index in range(12)]
    texts = [tokenizer.encode(example.context + example.target + "\n") for example in examples]
    width = max(map(len, texts))
    ids = torch.tensor([[*text, *[10] * (width - len(text))] for text in texts])
    model = random_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(80):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Documents of a few English-like sentences, some of one word."""
    folder = tmp_path_factory.mktemp("evaluate")
    draw = np.random.default_rng(0)
    words = ["".join(draw.choice(list("abdeiklmnoprstu"), draw.integers(2, 8))) for _ in range(200)]
    documents = []
    for _ in range(120):
        sentences = [" ".join(draw.choice(words, draw.integers(4, 14))) + "." for _ in range(draw.integers(1, 9))]
        documents.append(" ".join(sentences))
    (folder / "text.txt").write_text("\n\n".join([*documents, "word"]))
    config = BuildConfig(
        input=str(folder / "text.txt"), output=folder / "set", tokenizer={"vocabulary": VOCABULARY},
        txt_documents="paragraph", validation_fraction=0.3, member_tokens=1000, shard_tokens=5000,
    )  # fmt: skip
    assert build(config, Silent)
    return Dataset(folder / "set")


@pytest.fixture(scope="session")
def benchmarks() -> Path:
    """LAMBADA and OpenAI's synthetic sets, where they lie beside the repository."""
    folder = Path(__file__).parents[4] / "shared" / "data" / "eval"
    if not folder.is_dir():
        pytest.skip("no benchmark files beside the repository")
    return folder


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up files in the form of LAMBADA's and OpenAI's, one of them gzipped, with a line end behind it,
    and in a folder."""
    folder = tmp_path_factory.mktemp("data")
    names = ["Ann", "Ben", "Cleo", "Dan", "Eve", "Finn"]
    texts = [
        f'{{"text": "{a} met {b} at the river. There {b} was singing to {a}"}}' for a in names for b in names if a < b
    ]
    (folder / "lambada_test.jsonl").write_text("\n".join(texts) + "\n")
    shown = [f'{{"text": "{a} saw {b} at the lake and {a} waved to {b}"}}' for a in names for b in names if a > b]
    (folder / "lambada_dev.jsonl").write_text("\n".join(shown) + "\n")
    (folder / "synthetic").mkdir()
    lines = "".join(f'{{"context": "\\n{name[::-1].lower()} =", "completion": " {name.lower()}"}}\n' for name in names)
    (folder / "synthetic" / "reversed_words.jsonl.gz").write_bytes(gzip.compress(lines.encode()) + b"\n")
    return folder
