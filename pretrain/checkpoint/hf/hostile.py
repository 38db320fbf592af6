"""Text that tells one tokenizer from another: the gate of exported tokenizers reads it."""

import random

from data_pipeline.tokenizers.base import Tokenizer

_BLOCKS = 8  # of 48 characters, from each plane
_PIECES = 1500  # texts of pieces of the vocabulary
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
