"""The chat template of a tokenizer: the text in which conversations are put before an instruct model reads them. Import
keeps it in the run, export writes it again as it is; nothing here renders it."""

from pathlib import Path

from data_pipeline.common.atomic import atomic_write
from pretrain.checkpoint.hf.folder import read_json

FILE = "chat_template.jinja"
_CONFIG, _KEY, _USUAL = "tokenizer_config.json", "chat_template", "default"


def read(directory: Path) -> str | None:
    """Of a folder of Hugging Face's: a file of its own, or as older releases of transformers wrote it, by itself or
    as the usual one among several with names. None if there is none."""
    if (directory / FILE).is_file():
        return (directory / FILE).read_text(encoding="utf-8")
    found = read_json(directory / _CONFIG).get(_KEY) if (directory / _CONFIG).is_file() else None
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get(_USUAL)
    return found if isinstance(found, str) else None


def keep(template: str, directory: Path) -> None:
    """Writes it into a run or an export."""
    atomic_write(directory / FILE, template.encode())


def of_run(checkpoint: Path) -> str | None:
    """That of the run which `checkpoint` lies in; None if it has none."""
    path = checkpoint.resolve().parent.parent / FILE
    return path.read_text(encoding="utf-8") if path.is_file() else None
