"""Text that tells one tokenizer from another: the gates of exported and of imported tokenizers read it."""

import random
from collections.abc import Sequence

from data_pipeline.tokenizers.base import Tokenizer

_BLOCKS = 8  # of 48 characters, from each plane
_PIECES = 1500  # texts of pieces of the vocabulary
_SPACE_SIGN, _NEXT_LINE = "\u2581", "\u0085"  # which sentencepiece and transformers' form of it read otherwise
WHITE_SPACE = tuple(c for c in map(chr, range(0x3001)) if c.isspace() and c not in "\x1c\x1d\x1e\x1f")
"""Unicode's White_Space, which Python's `isspace` has four more characters than."""
_SPELLED = (
    "<|endoftext|>",
    "</s>",
    "<s>",
    "<unk>",
    "<pad>",
    "<mask>",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[UNK]",
    "<extra_id_0>",
)
_WRITTEN = (
    "", " ", "  ", "\n", "\t", "\r\n", "\0", "a", " a", "a ", "  a  b   c    ", "\n\n a\n  b\n\n\n", "\ta\t\tb \t c",
    "Don't they'll I'M we've 'tis", "1234567890 3.14159 1,000,000 1e-5 0x1F 007 1st \u00b2\u00b3 \u00bd \u0663 \u56db",
    "a.b,c;d:e!f?g(h)[i]{j}", "---|---|---|---|---|", "=========== *** ... !!!! ????", "snake_case camelCase",
    "https://example.org/a_b?c=d&e=%20#f", "def f(x):\n    return x  # two\n\n\tif x:\n", '<p class="a">&nbsp;</p>',
    "\u2581", "a\u2581b \u2581 c\u2581\u2581", "e\u0301 \u00e9 e\u0323\u0301 e\u0301\u0323 \u1100\u1161\u11a8 \uac01",
    "\ufb01 \uff21\uff42\uff43 \u2460 \u00bd \u212b \u1e9e \u0130i", "\u200b\u200d\u2060\ufeff\u00ad\u202eabc\u202c",
    "\u00a0\u2003\u3000a\u2028b\u2029c\u0085d", "\ufffd\ufffe\uffff", "\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "\U0001f3f3\ufe0f\u200d\U0001f308 \U0001f44d\U0001f3fd", "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "\u4e2d\u6587\u6ca1\u6709\u7a7a\u683c \u0e44\u0e17\u0e22 \u0939\u093f\u0928\u094d\u0926\u0940",
    "<0x0A><0x41> <0xE2> \u0120\u010a ##ing @@", "x" * 3000, "ab" * 1500, " " * 500, "\n" * 300, "-" * 400, "0" * 300,
)  # fmt: skip


_LANGUAGES = (
    "Sch\u00f6n, Frau M\u00fcller: \u00c5NGSTR\u00d6M na\u00efve \u00c9T\u00c9 \u0141\u00f3d\u017a \u0130stanbul",
    "THE Quick BROWN fox McDonald iPhone",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5\uc740 \uc774\ub807\ub2e4.",
    "\u4e2d\u6587\u548c\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8",
    "\u0420\u0443\u0441\u0441\u043a\u0438\u0439 \u0442\u0435\u043a\u0441\u0442",
    "\u03ba\u03b1\u03af \u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac",
    "Ti\u1ebfng Vi\u1ec7t",
    "a  b   c    d     e",
    "it's ``quoted'' text -- and 'more' \"here\"",
)  # fmt: skip
_FEW_PIECES = 300


def few_texts(tokenizer: Tokenizer) -> list[str]:
    """Texts for the gate of imported tokenizers: languages with capitals, accents, Han and Hangul; runs of spaces;
    names of special tokens; single letters, and pieces of the vocabulary."""
    draw = random.Random(0)
    pieces = [piece for piece in tokenizer.texts() if piece and _SPACE_SIGN not in piece]
    found = [*_LANGUAGES, *_WRITTEN, *_SPELLED, *(f"a {name}b {name}{name}" for name in tokenizer.special_pieces())]
    found += [space * count + end for space in " \t\n" for count in range(1, 6) for end in ("", "a", "1", ".")]
    found += [f"{chr(code)}a {chr(code)}" for code in (*range(0x20, 0x250), *range(0x370, 0x450))]
    found += [*draw.sample(pieces, min(_FEW_PIECES, len(pieces)))]
    found += ["".join(draw.choices(pieces, k=draw.randint(2, 12))) for _ in range(_FEW_PIECES if pieces else 0)]
    return [text for text in found if _SPACE_SIGN not in text and _NEXT_LINE not in text]


def texts(tokenizer: Tokenizer, special_tokens: tuple[str, ...]) -> list[str]:
    """Written ones, runs of each white space, characters of every plane, and pieces of the vocabulary in random order;
    none that spells one of `special_tokens`, which a text may hold."""
    draw = random.Random(0)
    texts = [*_WRITTEN, *_SPELLED, *(f"a {name}b {name}{name}" for name in _SPELLED)]
    texts += [space * count + end for space in " \t\n" for count in range(1, 20) for end in ("", "a", "1", ".")]
    texts += [chr(code) + end for code in range(0x250) for end in ("", "a")]
    for plane in range(17):
        starts = range(0, 0x3000, 48) if plane == 0 else draw.sample(range(0x10000 - 48), _BLOCKS)
        blocks = [[chr((plane << 16) + start + k) for k in range(48)] for start in starts]
        blocks += [[chr(draw.randrange(0x10000) + (plane << 16)) for _ in range(48)] for _ in range(_BLOCKS)]
        characters = [[c for c in block if not "\ud800" <= c <= "\udfff"] for block in blocks]
        texts += [joint.join(block) for block in characters for joint in ("", " ")]
    pieces = [piece for piece in tokenizer.texts() if piece]
    texts += [*draw.sample(pieces, min(_PIECES, len(pieces)))]
    texts += ["".join(draw.choices(pieces, k=draw.randint(2, 12))) for _ in range(_PIECES)]
    texts.append("".join(draw.choices(pieces, k=_PIECES)))
    return [text for text in texts if not any(name in text for name in special_tokens)]


def named(names: Sequence[str]) -> list[str]:
    """Prompts that name special tokens, with and without white space before them."""
    first, last = names[0], names[-1]
    texts = [f"The value of {name} class" for name in dict.fromkeys((first, last))]
    texts += [f"a{first}b", f"{first} a", f" {first}", f"a {first}. {last}  {first}{last},", f"a \n\t{first}\n b"]
    return [*texts, *(f"a{space}{first} b" for space in WHITE_SPACE)]
