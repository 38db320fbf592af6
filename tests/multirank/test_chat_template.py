"""A chat template, from a folder of Hugging Face's through a run into another."""

from pathlib import Path

from tests.helpers.hf import randomise, save, tokenizer_for
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, tiny_config

MODEL = {"vocabulary": 390, "attention": {}}


def _chat_template_after(template: str, tokenizer: Path, folder: Path) -> str:
    """What transformers finds in the export of the import of an export that had `template`."""
    from transformers import AutoTokenizer

    from pretrain.evaluate.opening import build_empty, build_scorer
    from pretrain.interop.hf import chat
    from pretrain.interop.hf.export import export
    from pretrain.interop.hf.imports import import_hf, read_config

    config = tiny_config(model=MODEL)
    engine = build_engine(config)
    randomise(engine)
    save(engine, config, tokenizer, folder / "checkpoints")
    checkpoint = folder / "checkpoints" / "step-00000000"
    first, run, second = folder / "first", folder / "run", folder / "second"
    export(checkpoint, config, first, lambda: build_scorer(config, checkpoint))
    (first / chat.FILE).write_text(template)
    imported = read_config(first, run)
    import_hf(first, imported, build_empty(imported), lambda warning: None)
    there = run / "checkpoints" / "step-00000000"
    export(there, imported, second, lambda: build_scorer(imported, there))
    return str(AutoTokenizer.from_pretrained(second).chat_template)


def test_a_chat_template_goes_through_import_and_export(tmp_path: Path) -> None:
    template = "{{ messages[0]['content'] }}"
    assert run_ranks(1, _chat_template_after, template, tokenizer_for("gpt", tmp_path), tmp_path) == [template]
