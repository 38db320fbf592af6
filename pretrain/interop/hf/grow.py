"""`pretrain import --add-tokens FILE`: a folder of Hugging Face's format with a larger vocabulary, for the import.

A temporary folder has a new config.json, the tokenizer as transformers' `add_tokens` makes it, and
the tensors that transformers' `resize_token_embeddings` changes, one at a time; what stays the same is linked. New rows
are the mean of those of the pieces that the tokenizer made of the token's text before, or drawn from the distribution
of all rows (John Hewitt 2021, https://nlp.stanford.edu/~johnhew/vocab-expansion.html; `mean_resizing` of transformers).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from safetensors import safe_open
from tokenizers import AddedToken, Tokenizer
from torch import Tensor

from data_pipeline.tokenizers.load import open_tokenizer, read_content
from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.interop.hf import folder as folders
from pretrain.interop.hf.folder import Folder
from pretrain.interop.hf.hf_tokenizer import load_tokenizer_of
from pretrain.interop.hf.imports import read_model_config
from pretrain.interop.hf.mtp import copies
from pretrain.interop.hf.new_tokens import GrownTokenizer, add_tokens
from pretrain.interop.hf.released import TEXT_TYPES
from pretrain.interop.hf.tokenizer import ORIGINAL
from pretrain.interop.hf.vocabulary import TOKENIZER_FILES, last_are_sentinels

NewRows = Literal["pieces", "distribution"]
_TOKENIZER, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
_REPLACED = (*TOKENIZER_FILES, "vocab.json", "merges.txt", "added_tokens.json", _SETTINGS, "config.json", ORIGINAL)
_EPSILON = 1e-9
"""factor of the covariance from which transformers draws new rows, so that they lie close to the mean"""
_ROWS_AT_ONCE = 16_384


@dataclass(frozen=True)
class NewIds:
    """Rows that a tensor of the vocabulary gets, and the rows from which they are made."""

    before: int
    """rows that the tensors have"""
    after: int
    """rows that they get"""
    used: int
    """rows of ids that the tokenizer had"""
    pieces: Mapping[int, tuple[int, ...]]
    """row -> rows whose mean it is; (): it is drawn from the distribution of the rows that are used"""


@contextmanager
def grown_folder(
    directory: Path, file: Path, new_rows: NewRows, say: Callable[[str], None], *, random_head: bool = False
) -> Iterator[Path]:  # fmt: skip
    """A temporary folder: the model of `directory` with the tokens of `file`, without an output projection only if the
    import is to have a `random_head`. Says what is new. Raises ConfigError for a folder, a tokenizer or a token with
    which that cannot be done."""
    if last_are_sentinels(directory):
        raise ConfigError(f"{directory}: the last ids are sentinels, so that no token can follow them")
    folder, model = folders.read(directory), read_model_config(directory, directory, random_head=random_head).model
    if model.capabilities.hashes_inputs:
        raise ConfigError(f"{directory} hashes what it reads, and has no vocabulary that could grow")
    with TemporaryDirectory() as temporary:
        target = Path(temporary) / directory.resolve().name
        target.mkdir()
        for path in directory.iterdir():
            if path.is_file() and path.name not in _REPLACED and path.suffix != ".safetensors":
                (target / path.name).symlink_to(path.resolve())
        grown = _write_tokenizer(directory, target, file, say)
        ids = _new_ids(grown, model.vocabulary or 0, new_rows)
        names = _write_config(folder, model, target, ids.after)
        written = set[str]()
        for path in sorted(directory.glob("*.safetensors")):
            written |= _write_tensors(path, target / path.name, names, ids)
        assert written == names.keys(), "each tensor of the vocabulary has its new rows"
        for line in described(grown, ids, new_rows):
            say(line)
        yield target


def described(grown: GrownTokenizer, ids: NewIds, new_rows: NewRows) -> Iterator[str]:
    """Sentences on what is new in the vocabulary."""
    count, reused = len(grown.tokens), max(0, min(ids.before, grown.first_id + len(grown.tokens)) - grown.first_id)
    drawn, lacked = sum(not ids.pieces[grown.first_id + number] for number in range(count)), grown.first_id - ids.before
    yield f"{count:,} new tokens have the ids {grown.first_id:,} to {grown.first_id + count - 1:,}"
    if reused:
        yield f"{reused:,} of them have rows that no token used before; these are initialized again"
    if lacked > 0:
        yield f"{lacked:,} ids of the tokenizer had no row: they have rows like tokens of unknown text"
    from_pieces = "the mean of the rows of the pieces that their text was before"
    from_all = "drawn from mean and covariance of all rows, as mean_resizing of transformers does"
    if new_rows == "distribution":
        yield f"rows of new tokens are {from_all}"
        return
    yield f"rows of new tokens are {from_pieces}" + (
        f"; of {drawn:,}, whose text was unknown, {from_all}" * (drawn > 0)
    )


def _new_ids(grown: GrownTokenizer, rows: int, new_rows: NewRows) -> NewIds:
    after = max(rows, grown.first_id + len(grown.tokens))
    pieces: dict[int, tuple[int, ...]] = dict.fromkeys(range(rows, after), ())  # ids that had no row
    for index, made_of in enumerate(grown.pieces, grown.first_id):
        pieces[index] = tuple(piece for piece in made_of if piece < rows) if new_rows == "pieces" else ()
    return NewIds(rows, after, min(rows, grown.first_id), pieces)


# The tokenizer.


def _write_tokenizer(directory: Path, target: Path, file: Path, say: Callable[[str], None]) -> GrownTokenizer:
    """Writes the tokenizer of `directory` with the tokens of `file`. Raises ConfigError where transformers'
    `add_tokens` makes other ids of it."""
    theirs: Any = _loaded_tokenizer(directory)
    path = directory / _TOKENIZER
    former = Tokenizer.from_file(str(path)) if path.is_file() else theirs.backend_tokenizer
    for _, token in sorted(theirs.added_tokens_decoder.items()):  # settings may name tokens that the file lacks
        if former.token_to_id(token.content) is None:
            former.add_tokens([token])
    grown = add_tokens(former, file, say)
    grown.tokenizer.save(str(target / _TOKENIZER))
    settings = folders.read_json(directory / _SETTINGS) if (directory / _SETTINGS).is_file() else {}
    if isinstance(listed := settings.get("added_tokens_decoder"), dict):  # of transformers before 5
        settings["added_tokens_decoder"] = listed | {
            str(index): _fields(token) for index, token in enumerate(grown.tokens, grown.first_id)
        }
    (target / _SETTINGS).write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    theirs.add_tokens(list(grown.tokens))
    _check_alike(grown, theirs, target)
    return grown


def _loaded_tokenizer(directory: Path) -> Any:
    try:
        found = load_tokenizer_of(directory.resolve())
    except Exception as error:  # the library raises whatever a file leads to
        raise ConfigError(
            f"{directory} has no tokenizer that transformers reads ({' '.join(str(error).split())[:200]})"
        ) from None
    if not found.is_fast:
        raise ConfigError(f"{directory}: its {type(found).__name__} has no {_TOKENIZER}, to which tokens are added")
    return found


def _fields(token: AddedToken) -> dict[str, Any]:
    names = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    return {name: getattr(token, name) for name in names}


def _check_alike(grown: GrownTokenizer, theirs: Any, target: Path) -> None:
    """Raises ConfigError unless our tokenizer of `target`, and transformers' of it, have the ids of new tokens that
    transformers' `add_tokens` leads to (`theirs`): in texts, and of special ones, which no text here leads to."""
    path = target / _TOKENIZER
    ours, read = open_tokenizer(read_content(path), path, needs_end=False), _loaded_tokenizer(target)
    for token in grown.tokens:
        if token.special:
            expected = theirs.convert_tokens_to_ids(token.content)
            if not ours.special_pieces().get(token.content) == expected == read.convert_tokens_to_ids(token.content):
                raise ConfigError(
                    f"transformers' add_tokens gives {token.content!r} the id {expected}, the grown tokenizer another"
                )
    contents = [token.content for token in grown.tokens if not token.special]
    texts = [f"{before}{text}{after}" for text in contents for before, after in (("", ""), ("a ", " b"), ("x", "y"))]
    texts += ["".join(contents[:1000]), " ".join(contents[:1000])]
    texts = texts[:10_000]
    for text, ids in zip(texts, ours.encode_batch(texts), strict=True):
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        found = read(text, add_special_tokens=False)["input_ids"]
        if not ids.tolist() == expected == found:
            raise ConfigError(
                f"transformers' add_tokens makes {expected[:20]} of {text[:60]!r}, and the grown tokenizer "
                f"{ids.tolist()[:20]}: the two do not belong together"
            )


# The model.


def _write_config(folder: Folder, model: Model, target: Path, rows: int) -> dict[str, int]:
    """Writes config.json for `rows`. Returns the names, in the files, of tensors that have so many, and along which
    axis."""
    try:
        with torch.device("meta"):
            theirs: Any = folder.family.class_of(model)(folder.hf_config)
        before, settings = _shapes(theirs), theirs.config.to_dict()
        theirs.resize_token_embeddings(rows + 1, mean_resizing=False)  # another number in any case
        after = _shapes(theirs)
        theirs.resize_token_embeddings(rows, mean_resizing=False)
    except Exception as error:  # the library raises whatever a class lacks
        raise ConfigError(
            f"{folder.path}: transformers cannot change its vocabulary ({' '.join(str(error).split())[:200]})"
        ) from None
    changed = {key: value for key, value in theirs.config.to_dict().items() if settings.get(key) != value}
    tree = folders.read_json(folder.path / "config.json")
    described = tree["text_config"] if tree["model_type"] in TEXT_TYPES else tree
    described.update({key: value for key, value in changed.items() if key.endswith("vocab_size")})
    (target / "config.json").write_text(json.dumps(tree, indent=2) + "\n")
    axes = {
        name: next(axis for axis, size in enumerate(shape) if size != after[name][axis])
        for name, shape in before.items()
        if after[name] != shape
    }
    prefix = f"{type(theirs).base_model_prefix}."
    found = {name: axis for known, axis in axes.items() for name in (known, known.removeprefix(prefix))}
    found |= {copy: axes[original] for copy, original in copies(model) if original in axes}
    stored = folder.weights.stored_names or {}
    names = {stored.get(name, name): axis for name, axis in found.items() if name in folder.tensors}
    if not names:
        raise ConfigError(f"{folder.path} has none of the tensors that grow with a vocabulary: {', '.join(axes)}")
    return names


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def grow_rows(value: Tensor, axis: int, ids: NewIds) -> Tensor:
    """`value` with rows along `axis` for new ids. Equal tensors get equal rows."""
    rows = value.movedim(axis, 0)
    found = torch.empty(ids.after, *rows.shape[1:], dtype=value.dtype)
    found[: ids.before] = rows
    drawn = [index for index, made_of in ids.pieces.items() if not made_of]
    if drawn:
        found[drawn] = _drawn(rows[: ids.used], len(drawn)).to(value.dtype)
    for index, made_of in ids.pieces.items():
        if made_of:
            found[index] = rows[list(made_of)].float().mean(0).to(value.dtype)
    return found.movedim(0, axis).contiguous()


def _drawn(rows: Tensor, count: int) -> Tensor:
    """`count` draws from the normal distribution with the mean of `rows`, and their covariance times `_EPSILON`: sums
    of the rows' differences from the mean with normal weights, which have this covariance."""
    generator = torch.Generator().manual_seed(0)
    parts = [rows[start : start + _ROWS_AT_ONCE] for start in range(0, len(rows), _ROWS_AT_ONCE)]
    mean = sum((part.double().sum(0) for part in parts), torch.zeros(rows.shape[1:], dtype=torch.float64)) / len(rows)
    total = torch.zeros(count, *rows.shape[1:])
    for part in parts:
        weights = torch.randn(count, len(part), generator=generator)
        total += torch.tensordot(weights, part.float() - mean.float(), 1)
    drawn: Tensor = mean.float() + total * (_EPSILON / len(rows)) ** 0.5
    return drawn


def _write_tensors(source: Path, target: Path, names: Mapping[str, int], ids: NewIds) -> set[str]:
    """Writes a file of tensors, of which those of `names` have more rows, and returns the names of these; or a link
    where it has none of them."""
    with source.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(size))
        metadata = entries.pop("__metadata__", None)
        in_order = sorted(entries, key=lambda name: entries[name]["data_offsets"])
        if names.keys().isdisjoint(in_order):
            target.symlink_to(source.resolve())
            return set()
        with target.open("xb") as written, safe_open(source, "pt") as opened:
            header = _header(entries, in_order, names, ids.after)
            text = json.dumps(({} if metadata is None else {"__metadata__": metadata}) | header).encode()
            text += b" " * (-len(text) % 8)
            written.write(len(text).to_bytes(8, "little") + text)
            for name in in_order:
                if name in names:
                    grown = grow_rows(opened.get_tensor(name), names[name], ids)
                    written.write(grown.flatten().view(torch.uint8).numpy().data)
                else:
                    start, end = entries[name]["data_offsets"]
                    file.seek(8 + size + start)
                    _copy(file, written, end - start)
    return names.keys() & set(in_order)


def _header(
    entries: Mapping[str, Any], in_order: Iterable[str], names: Mapping[str, int], rows: int
) -> dict[str, dict[str, Any]]:
    """The entries of tensors, of which some get so many rows."""
    header, position = dict[str, dict[str, Any]](), 0
    for name in in_order:
        entry = entries[name]
        shape, (start, end) = list(entry["shape"]), entry["data_offsets"]
        size = end - start
        if name in names:
            size = size // shape[names[name]] * rows
            shape[names[name]] = rows
        header[name] = {"dtype": entry["dtype"], "shape": shape, "data_offsets": [position, position + size]}
        position += size
    return header


def _copy(source: Any, target: Any, count: int) -> None:
    steps = [*range(0, count, 1 << 24), count]
    for start, end in pairwise(steps):
        target.write(source.read(end - start))
