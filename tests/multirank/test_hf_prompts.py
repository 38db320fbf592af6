"""What a user writes to an exported model: transformers' own pipeline fills the masks of a prompt as `generate` does,
and its `generate` continues from the same ids."""

from pathlib import Path
from typing import Any

import pytest

from data_pipeline.tokenizers.load import Kind, train_tokenizer
from pretrain.config.run_config import RunConfig
from tests.helpers.datasets import make_documents
from tests.helpers.families import family_config
from tests.helpers.hf import randomise, save
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine

VOCABULARY, TOKENS = 420, 6
PROMPTS = ("The value of {} class", "one{} two", "a  {}\n{}, three")
MODELS: list[tuple[str, Kind]] = [("roberta", "byte_bpe"), ("t5", "bpe")]


def _exported(config: RunConfig, kind: Kind, directory: Path) -> Path:
    """The checkpoint of the model that `directory`/hf was exported from."""
    from pretrain.evaluate.opening import build_scorer
    from pretrain.interop.hf.export import export

    tokenizer = train_tokenizer(make_documents(0, 50), kind, 300)
    directory.mkdir()
    path = directory / tokenizer.file_name
    tokenizer.save(path)
    engine = build_engine(config)
    randomise(engine)
    checkpoint = save(engine, config, path, directory / "checkpoints")
    export(checkpoint, config, directory / "hf", lambda: build_scorer(config, checkpoint))
    return checkpoint


def _answers(directory: Path) -> dict[str, tuple[Any, Any]]:
    """Our tokens and transformers' for each prompt of each model."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

    from data_pipeline.tokenizers.load import load_tokenizer
    from pretrain.evaluate.decoding.base import GREEDY
    from pretrain.evaluate.decoding.decode import decode
    from pretrain.evaluate.decoding.fill import fill, masked_input
    from pretrain.evaluate.decoding.prompts import Prompts
    from pretrain.evaluate.opening import build_scorer
    from pretrain.run_dir.paths import TOKENIZER

    found = {}
    for family, kind in MODELS:
        config = family_config(family, model={"vocabulary": VOCABULARY})
        folder = directory / f"{family}-{kind}"
        checkpoint = _exported(config, kind, folder)
        engine, prompts = build_scorer(config, checkpoint), Prompts(config, load_tokenizer(checkpoint / TOKENIZER))
        named = [prompt.replace("{}", "<extra_id_0>" if family == "t5" else "<mask>") for prompt in PROMPTS]
        if not config.model.has_decoder:
            asked = pipeline("fill-mask", model=str(folder / "hf"), device="cpu")
            for text in named:
                ids = masked_input(prompts, text, config.model.sequence_length)
                filled = zip(ids, fill(engine, prompts, [ids])[0], strict=True)
                ours = [token for index, token in filled if index == prompts.specials.mask]
                theirs = asked(text, top_k=1)
                nested = theirs if isinstance(theirs[0], list) else [theirs]
                found[f"{family}: {text}"] = ours, [best[0]["token"] for best in nested]
            continue
        tokenizer = AutoTokenizer.from_pretrained(folder / "hf")
        model = AutoModelForSeq2SeqLM.from_pretrained(folder / "hf").eval()
        for text in named:
            request = prompts.request(text, TOKENS)
            ours = decode(engine, [request], GREEDY, prompts.stops([]))[0][0].tokens
            theirs = model.generate(
                **tokenizer(text, return_tensors="pt"), max_new_tokens=TOKENS, do_sample=False, num_beams=1
            )
            found[f"{family}: {text}"] = ours, theirs[0, 1:].tolist()
    return found


@pytest.mark.timeout(300)
def test_an_exported_model_answers_the_prompt_that_a_user_writes_as_here(tmp_path: Path) -> None:
    answers = run_ranks(1, _answers, tmp_path)[0]
    assert len(answers) == len(PROMPTS) * len(MODELS)
    for prompt, (ours, theirs) in answers.items():
        assert list(ours) == theirs[: len(ours)], prompt
