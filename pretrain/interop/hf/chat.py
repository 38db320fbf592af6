"""The chat template of a tokenizer: a Jinja template that renders a conversation as an instruct model's input. Import
copies it into the run and export writes it unchanged; nothing here renders it."""

from collections.abc import Mapping
from pathlib import Path

from pretrain.errors import ConfigError
from pretrain.interop.hf.folder import read_json
from pretrain.run_dir.paths import run_of

FILE, FOLDER = "chat_template.jinja", "additional_chat_templates"
_CONFIG, _KEY, _USUAL = "tokenizer_config.json", "chat_template", "default"


def read(directory: Path) -> str | None:
    """Reads the chat template of a Hugging Face folder: from its own file, or from tokenizer_config.json, where older
    releases of transformers wrote one template or several with names (the default one is read). None: it has none.
    Raises ConfigError for a file that can't be read."""
    if (directory / FILE).is_file():
        return _text(directory / FILE)
    return _configured(directory).get(_USUAL)


def further(directory: Path) -> dict[str, str]:
    """Reads the other chat templates of a folder, by name. Raises ConfigError for a file that can't be read."""
    files = {path.stem: _text(path) for path in sorted((directory / FOLDER).glob("*.jinja"))}
    named = (_configured(directory) | files).items()
    return {name: text for name, text in named if name != _USUAL and name.replace("-", "_").isidentifier()}


def write(directory: Path, template: str | None, more: Mapping[str, str]) -> None:
    """Writes the chat template of a folder, and others by name."""
    if template is not None:
        (directory / FILE).write_text(template, encoding="utf-8")
    for name, text in more.items():
        (directory / FOLDER).mkdir(exist_ok=True)
        (directory / FOLDER / f"{name}.jinja").write_text(text, encoding="utf-8")


def run_template(checkpoint: Path) -> str | None:
    """Reads the chat template of the run that `checkpoint` belongs to; None: it has none. Raises ConfigError for one
    that can't be read."""
    path = run_of(checkpoint).chat_template
    return _text(path) if path.is_file() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can't be read ({error}): a chat template is a text in UTF-8") from None


def _configured(directory: Path) -> dict[str, str]:
    """Chat templates of tokenizer_config.json by name."""
    template = read_json(directory / _CONFIG).get(_KEY) if (directory / _CONFIG).is_file() else None
    if isinstance(template, str):
        return {_USUAL: template}
    entries = template if isinstance(template, list) else []
    pairs = [(entry.get("name"), entry.get("template")) for entry in entries if isinstance(entry, dict)]
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}
