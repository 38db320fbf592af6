"""The chat template of a tokenizer: a Jinja template that renders a conversation as an instruct model's input. Import
copies it into the run and export writes it unchanged; nothing here renders it."""

from pathlib import Path

from pretrain.checkpoint.hf.folder import read_json
from pretrain.run_dir.paths import run_of

FILE = "chat_template.jinja"
_CONFIG, _KEY, _USUAL = "tokenizer_config.json", "chat_template", "default"


def read(directory: Path) -> str | None:
    """Reads the chat template of a Hugging Face folder: from its own file, or from tokenizer_config.json, where older
    releases of transformers wrote one template or several with names (the default one is read). None: it has none."""
    if (directory / FILE).is_file():
        return (directory / FILE).read_text(encoding="utf-8")
    template = read_json(directory / _CONFIG).get(_KEY) if (directory / _CONFIG).is_file() else None
    if isinstance(template, list):
        by_name = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = by_name.get(_USUAL)
    return template if isinstance(template, str) else None


def of_run(checkpoint: Path) -> str | None:
    """Reads the chat template of the run that `checkpoint` belongs to; None: it has none."""
    path = run_of(checkpoint).chat_template
    return path.read_text(encoding="utf-8") if path.is_file() else None
