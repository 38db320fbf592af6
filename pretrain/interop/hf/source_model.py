"""Description of a model that a folder of Hugging Face's has besides weights, ids and the chat template: which ids end
a text, how special tokens are called, settings of sampling. Import keeps it in the run (`RunDir.source_model`), runs
that start from it keep it too, and exports say it again.

Some of it is what transformers' tokenizer of the folder does, noted at import: the ids that it puts around a text, and
the ids of a conversation. An export has to give the same.
"""

import json
import re
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from data_pipeline.tokenizers.base import Tokenizer
from pretrain.errors import ConfigError
from pretrain.interop.hf import chat
from pretrain.interop.hf.folder import read_json
from pretrain.interop.hf.hf_tokenizer import load_tokenizer_of
from pretrain.run_dir.paths import run_of

GENERATION, TOKENIZER_CONFIG, SPECIAL_TOKENS = (
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
README = "README.md"
_TOKENIZER = "tokenizer.json"
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_NAMES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "pad", "cls", "sep", "mask"))
_OF_A_PLACE = ("chat_template", "auto_map", "name_or_path", "tokenizer_file", "special_tokens_map_file", "vocab_file")
"""fields of tokenizer_config.json that say where something lies, or that code of the folder is to be run"""
PROBE = "A word"
TURNS = (
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "It is 4."},
    {"role": "user", "content": "Und 3 + 3?\nGr\u00fc\u00dfe"},
)
"""a conversation of three turns, the next of which is asked for"""


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A conversation as a template renders it, and its ids."""

    text: str
    ids: list[int]


@dataclass(frozen=True, kw_only=True)
class Noted:
    """Properties of transformers' tokenizer of the folder."""

    size: int
    names: dict[str, str]
    """field of tokenizer_config.json -> name of a special token, also where the file has no such field"""
    before: list[int]
    """ids before a text"""
    after: list[int]
    turns: Rendered | None
    """`TURNS`; None: the folder has no chat template that renders them"""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Name of an imported model, and its license."""

    name: str
    """name on the hub and commit, or the folder's name"""
    license: str | None
    """`license` of the folder's README.md; None: it states none"""


@dataclass(frozen=True, kw_only=True)
class SourceModel:
    """One JSON file, whose keys are these fields."""

    ids: dict[str, Any]
    """`bos_token_id`, `eos_token_id`, `pad_token_id` of the model's config"""
    context: int | None
    """`max_position_embeddings` of the model's config"""
    dtype: str | None
    """type of the folder's weights, by its config"""
    generation: dict[str, Any] | None
    """generation_config.json; None: the folder has none"""
    tokenizer: dict[str, Any]
    """tokenizer_config.json, without the chat template"""
    special_tokens_map: dict[str, Any] | None
    post_processor: dict[str, Any] | None
    """post-processor of tokenizer.json, which puts special tokens around a text"""
    templates: dict[str, str]
    """chat templates besides the usual one, by name"""
    noted: Noted | None
    """None: transformers does not read the folder's tokenizer"""
    special_pieces: dict[str, int]
    """ids of the special pieces of the imported tokenizer, by name"""
    begin_of_text: int | None
    """id that the imported tokenizer begins a text with"""
    answers_by_template: bool = False
    """whether answers were trained here that a chat template ends"""
    name: str | None = None
    """see `Origin`; None: imported by an earlier version"""
    license: str | None = None

    @property
    def ends(self) -> tuple[int, ...]:
        """Ids that end a text where it is generated."""
        for tree in (self.generation or {}, self.ids):
            if (found := tree.get("eos_token_id")) is not None:
                return tuple(found) if isinstance(found, list) else (found,)
        return ()

    @property
    def splits(self) -> bool:
        """Whether its tokenizer takes what spells a special token for ordinary text."""
        return bool(self.tokenizer.get("split_special_tokens", False))

    def of(self, tokenizer: Tokenizer, is_begin_given: bool = False) -> "SourceModel":
        """This of an import with `tokenizer`, whose begin of text goes before what the folder does where a user gave
        it."""
        found = replace(self, special_pieces=tokenizer.special_pieces(), begin_of_text=tokenizer.begin_of_text)
        if not is_begin_given or self.noted is None:
            return found
        begin, pieces = tokenizer.begin_of_text, tokenizer.special_pieces()
        name = {} if begin is None else {"bos_token": next(piece for piece, index in pieces.items() if index == begin)}
        return replace(
            found,
            tokenizer=self.tokenizer | {"add_bos_token": begin is not None} | name,
            noted=replace(self.noted, before=tokenizer.opened([]), names=self.noted.names | name),
        )

    def is_of(self, tokenizer: Tokenizer) -> bool:
        """Whether `tokenizer` is the imported one, which may have grown."""
        return all(tokenizer.id_of(name) == index for name, index in self.special_pieces.items())

    def text(self) -> str:
        """The file's contents."""
        return json.dumps(asdict(self), indent=2) + "\n"  # in ASCII: a file may name half of a surrogate pair


def read(directory: Path, hf_config: PretrainedConfig, name: str | None = None) -> SourceModel:
    """Description of the model that the folder has, which is called `name` (default: its own). Raises ConfigError for a
    file that cannot be read."""
    settings, tokenizer = _json(directory / TOKENIZER_CONFIG) or {}, _json(directory / _TOKENIZER) or {}
    return SourceModel(
        ids={name: getattr(hf_config, name, None) for name in _IDS},
        context=getattr(hf_config, "max_position_embeddings", None),
        dtype=None if getattr(hf_config, "dtype", None) is None else str(hf_config.dtype).removeprefix("torch."),
        generation=_json(directory / GENERATION),
        tokenizer={key: value for key, value in settings.items() if key not in _OF_A_PLACE},
        special_tokens_map=_json(directory / SPECIAL_TOKENS),
        post_processor=tokenizer.get("post_processor"),
        templates=chat.further(directory),
        noted=_note(directory),
        special_pieces={},
        begin_of_text=None,
        name=name or directory.resolve().name,
        license=_license(directory / README),
    )


def origin_of(checkpoint: Path) -> Origin | None:
    """The imported model that the weights of a checkpoint's run began as, also where the run has another tokenizer now.
    None: there is none, or an earlier version imported it. Raises ConfigError for a file that cannot be read."""
    path = run_of(checkpoint).source_model
    tree = read_json(path) if path.is_file() else {}
    name = tree.get("name")
    return None if name is None else Origin(name=name, license=tree.get("license"))


def _license(readme: Path) -> str | None:
    """The `license` of a model card's front matter, of a word's characters as the hub has them."""
    text = readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else ""
    head = re.match(r"---\s*\n(.*?)\n---", text, re.DOTALL)
    found = head and re.search(r"^license:[ \t]*[\"']?([\w.+-]+)[\"']?[ \t]*$", head[1], re.MULTILINE)
    return found[1] if found else None


def run_source(checkpoint: Path, tokenizer: Tokenizer) -> SourceModel | None:
    """Description that the run of a checkpoint keeps; None: it was not imported, or has another tokenizer now. Raises
    ConfigError for a file that cannot be read."""
    path = run_of(checkpoint).source_model
    if not path.is_file():
        return None
    tree = read_json(path)
    try:
        known = {field.name: tree[field.name] for field in fields(SourceModel) if field.name in tree}
        if (noted := known["noted"]) is not None:
            turns = None if noted["turns"] is None else Rendered(**noted["turns"])
            known["noted"] = Noted(**{**noted, "turns": turns})
        found = SourceModel(**known)
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error}): import the model again") from None
    return found if found.is_of(tokenizer) else None


def _json(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.is_file() else None


def _note(directory: Path) -> Noted | None:
    try:
        theirs = load_tokenizer_of(directory)
        plain, whole = (theirs(PROBE, add_special_tokens=added)["input_ids"] for added in (False, True))
    except Exception:  # the library raises whatever a folder leads to; `tokenizer_gate` says so
        return None
    start = next((at for at in range(len(whole)) if whole[at : at + len(plain)] == plain), None)
    if start is None:
        return None
    return Noted(
        size=len(theirs),
        names={name: str(value) for name in _NAMES if (value := getattr(theirs, name, None)) is not None},
        before=whole[:start],
        after=whole[start + len(plain) :],
        turns=rendered(theirs),
    )


def rendered(theirs: Any) -> Rendered | None:
    """Text and ids that transformers' tokenizer makes of `TURNS`. None: it has no chat template that renders them."""
    try:
        text = theirs.apply_chat_template(list(TURNS), tokenize=False, add_generation_prompt=True)
        ids = theirs.apply_chat_template(list(TURNS), tokenize=True, add_generation_prompt=True, return_dict=True)
    except Exception:  # of no template, and whatever a template raises
        return None
    return Rendered(text=text, ids=list(ids["input_ids"]))
