"""What a model reads of a prompt, by what it was trained for, and how its words become text."""

import pytest

from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.byte import ByteTokenizer
from data_pipeline.tokenizers.load import train_tokenizer
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.fill import masked_input
from pretrain.evaluate.decoding.prompts import USUAL, Prompts
from tests.helpers.families import family_config
from tests.helpers.tiny import LENGTH, tiny_config


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_tokenizer(["one two three four five six. " * 40], "bpe", 290)


def _prompts(config: RunConfig, tokenizer: Tokenizer) -> Prompts:
    return Prompts(config, tokenizer)


def test_a_decoder_goes_on_from_the_last_token_of_the_prompt(bpe: Tokenizer) -> None:
    prompts, ids = _prompts(tiny_config(), bpe), bpe.encode("one two three")
    request = prompts.request("one two three", 5)
    assert [*request.reads, request.start] == ids
    assert prompts.generated_text(request, bpe.encode(" four")) == " four"
    assert prompts.filled(request, []) is None
    empty = prompts.request("", 5)
    assert (list(empty.reads), empty.start) == ([], bpe.end_of_text)


def test_what_an_objective_puts_around_its_inputs_is_around_prompts(bpe: Tokenizer) -> None:
    ids = bpe.encode("one two")
    for family, cls, start in (("t5", False, "pad"), ("prefix-lm", False, "pad"), ("bart", True, "end")):
        prompts = _prompts(family_config(family), bpe)
        request, known = prompts.request("one two", 5), prompts.specials
        assert list(request.reads) == [*([known.cls] if cls else []), *ids, known.end], family
        assert request.start == getattr(known, start), family


def test_names_of_sentinels_stand_for_them_and_what_is_said_for_them_is_filled_in(bpe: Tokenizer) -> None:
    prompts = _prompts(family_config("t5"), bpe)
    first, second, *_ = prompts.specials.sentinels
    request = prompts.request("one <extra_id_0> three <extra_id_1>.", 8)
    ids = bpe.encode("one"), bpe.encode(" three"), bpe.encode(".")
    assert list(request.reads) == [*ids[0], first, *ids[1], second, *ids[2], prompts.specials.end]
    said = [first, *bpe.encode(" two"), second, *bpe.encode(" four five")]
    assert prompts.generated_text(request, said) == "<extra_id_0> two<extra_id_1> four five"
    assert prompts.filled(request, said) == "one two three four five."
    assert prompts.filled(request, said[:1]) == "one three<extra_id_1>.", "what nothing was said for stays"


def test_a_mask_is_named_either_way_and_has_to_be_there(bpe: Tokenizer) -> None:
    prompts = _prompts(family_config("bert"), bpe)
    known, ids = prompts.specials, bpe.encode("one")
    expected = [known.cls, *ids, known.mask, *bpe.encode(" three"), known.sep]
    assert masked_input(prompts, "one [MASK] three", LENGTH) == expected
    assert masked_input(prompts, "one <mask> three", LENGTH) == expected
    assert masked_input(prompts, "one \n\u00a0 [MASK] three", LENGTH) == expected, "as transformers' lstrip"
    with pytest.raises(ConfigError, match=r"prompt 2 has no \[MASK\]"):
        masked_input(prompts, "one two", LENGTH, "prompt 2")
    with pytest.raises(ConfigError, match="prompt 2 is 5 tokens long, and the model reads 4"):
        masked_input(prompts, "one [MASK] six", 4, "prompt 2")


def test_the_space_before_a_name_stays_where_it_is_a_token_of_its_own() -> None:
    prompts = _prompts(family_config("t5"), ByteTokenizer())
    expected = [*ByteTokenizer().encode("one "), prompts.specials.sentinels[0], *ByteTokenizer().encode(" three")]
    assert prompts.encode("one <extra_id_0> three") == expected


def test_a_prompt_that_does_not_fit_is_refused_and_never_cut(bpe: Tokenizer) -> None:
    prompts = _prompts(tiny_config(), bpe)
    fits = bpe.decode(bpe.encode("one two three four five six. " * 9)[:LENGTH])
    assert len(bpe.encode(fits)) == LENGTH
    assert prompts.request(fits, None).longest == 1, "the last position says one more"
    with pytest.raises(ConfigError, match="prompt 7 is 33 tokens long, and the model reads 32"):
        prompts.request(f"{fits} ", None, "prompt 7")
    with pytest.raises(ConfigError, match="leaves room for 1 of the 2 tokens of --max-tokens: shorten it"):
        prompts.request(fits, 2)
    assert prompts.request("one", None).longest == LENGTH, "what there is room for, which is less than the usual"
    assert USUAL > LENGTH
    t5 = _prompts(family_config("t5"), bpe)
    assert t5.request("one", None).longest == 16
    with pytest.raises(ConfigError, match="16 of the 17 tokens of --max-tokens: ask for fewer"):
        t5.request("one", 17)


def test_texts_end_at_a_document_s_end_and_at_stop_strings(bpe: Tokenizer) -> None:
    prompts = _prompts(tiny_config(), bpe)
    stops = prompts.stops(["e f", "!!"])
    assert stops.end([*bpe.encode("one"), bpe.end_of_text])
    assert stops.end(bpe.encode("one two three four"))
    assert stops.end(bpe.encode("three five"))
    assert not stops.end(bpe.encode("three five one two six one two three"))
    assert not prompts.stops([]).end(bpe.encode("three five"))
