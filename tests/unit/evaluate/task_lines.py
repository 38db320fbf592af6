# ruff: noqa: E501 (lines of data)
"""Lines in the form of each benchmark, made up, and how the last document of them stands in a prompt as an example.

The fields are those of the datasets that the task files name; what a task doesn't read is left out.
"""

from typing import Any

_NLI = {"premise": "The dog slept on the porch.", "hypothesis": "The dog was outside."}
_POINT = "Ann Lee, who sails, met Bo Ray. They left.\n@highlight\nA meeting at sea\n@highlight\nNobody was hurt"
_RACE = {"example_id": "high1.txt", "article": "Tom keeps bees. He sells honey."}
_SQUAD = {"title": "River_Dee", "context": "The Dee is 110 km long."}
_PAIR = {"sentence1": "Al sings.", "sentence2": "Al is singing."}
_ANLI = {"premise": "Tom keeps bees.", "hypothesis": "Tom keeps cats."}

LINES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "hellaswag": (
        [{"activity_label": "Making tea", "ctx_a": "A pot [step] stands on a stove.", "ctx_b": "the woman", "endings": ["fills it with water.", "eats it.", "sings [substeps] a song.", "flies."], "label": "0"}],
        "Making tea: A pot stands on a stove. The woman fills it with water.",
    ),
    "storycloze_2016": (
        [{"input_sentence_1": "Al lost his key.", "input_sentence_2": "He rang the bell.", "input_sentence_3": "Nobody came.", "input_sentence_4": "He sat down.", "sentence_quiz1": "He flew home.", "sentence_quiz2": "He waited.", "answer_right_ending": 2}],
        "Al lost his key. He rang the bell. Nobody came. He sat down. He waited.",
    ),
    "piqa": ([{"goal": "To dry a shirt,", "sol1": "hang it up.", "sol2": "eat it.", "label": 0}], "To dry a shirt, hang it up."),
    "arc_easy": (
        [{"id": "1", "question": "What is ice made of?", "choices": {"text": ["sand", "water", "air"], "label": ["A", "B", "C"]}, "answerKey": "B"}],
        "Question: What is ice made of?\nAnswer: water",
    ),
    "arc_challenge": (
        [{"id": "1", "question": "What melts ice?", "choices": {"text": ["heat", "sound"], "label": ["1", "2"]}, "answerKey": "1"}],
        "Question: What melts ice?\nAnswer: heat",
    ),
    "openbookqa": (
        [{"id": "1", "question_stem": "A plant needs", "choices": {"text": ["ink", "light"], "label": ["A", "B"]}, "answerKey": "B "}],
        "A plant needs light",
    ),
    "wsc273": (
        [{"text": "The cup fell off the table because it was loose.", "pronoun": "it", "pronoun_loc": 35, "options": ["The cup", "The table"], "label": 0}],
        "The cup fell off the table because the cup was loose.",
    ),
    "winogrande": (
        [{"sentence": "The cup did not fit in the bag because the _ was small.", "option1": "cup", "option2": "bag", "answer": "2"}],
        "The cup did not fit in the bag because the bag was small.",
    ),
    "copa": (
        [{"premise": "The glass fell.", "choice1": "It broke.", "choice2": "It sang.", "question": "effect", "label": 0}],
        "The glass fell therefore it broke.",
    ),
    "boolq": (
        [{"passage": "Ice -- Ice is frozen water.", "question": "is ice water", "label": 1}],
        "Ice -- Ice is frozen water.\nquestion: is ice water?\nanswer: yes",
    ),
    "cb": (
        [{"premise": "A: I doubt that it rained.", "hypothesis": "it rained", "label": 1}],
        "A: I doubt that it rained.\nquestion: it rained. true, false, or neither?\nanswer: false",
    ),
    "rte": ([{**_NLI, "label": 0}], "The dog slept on the porch.\nquestion: The dog was outside. True or False?\nanswer: True"),
    "wic": (
        [{"word": "bank", "sentence1": "A bank of sand.", "sentence2": "A bank lends.", "label": 0}],
        "A bank of sand.\nA bank lends.\nquestion: Is the word 'bank' used in the same way in the two sentences above?\nanswer: no",
    ),
    "wsc": (
        [{"text": "Ann told Sue that she , not Bo , had won .", "span1_index": 0, "span2_index": 4, "span1_text": "Ann", "span2_text": "she", "label": 1}],
        'Passage: Ann told Sue that *she*, not Bo, had won.\nQuestion: In the passage above, does the pronoun "*she*" refer to "Ann"?\nAnswer: yes',
    ),
    "multirc": (
        [{"paragraph": "Al has a dog.", "question": "Who has a dog?", "answer": "Bo", "idx": {"paragraph": 3, "question": 5, "answer": 7}, "label": 0}],
        "Al has a dog.\n\nWho has a dog?\n- [False] Bo",
    ),
    "record": (
        [{"passage": _POINT, "query": "@placeholder sails.", "entities": ["Bo Ray", "Ann Lee", "Ann Lee"], "answers": ["Ann Lee"]}],
        "Ann Lee, who sails, met Bo Ray. They left.\n\n- A meeting at sea\n- Nobody was hurt\n- Ann Lee sails.",
    ),
    **{
        f"anli_r{n}": ([{**_ANLI, "label": 2}], f"anli {n}: anli {n}: Tom keeps bees.\nQuestion: Tom keeps cats. True, False, or Neither? False")
        for n in (1, 2, 3)
    },
    "triviaqa": (
        [{"question": "Who made the pot?", "answer": {"value": "Al", "aliases": ["Al", "Albert"]}}],
        "Q: Who made the pot?\n\nA: Al",
    ),
    "nq_open": ([{"question": "who made the pot", "answer": ["Al", "Albert"]}], "Q: Who made the pot?\n\nA: Al"),
    "webqs": ([{"url": "", "question": "who made the pot?", "answers": ["Al"]}], "Q: who made the pot?\n\nA: Al"),
    "squadv2": (
        [
            {"title": "Dee", "context": "The Dee is short.", "question": "What is short?", "answers": {"text": ["The Dee"]}},
            {**_SQUAD, "question": "How long is it?", "answers": {"text": ["110 km", "110"], "answer_start": [11, 11]}},
            {**_SQUAD, "question": "How old is it?", "answers": {"text": [], "answer_start": []}},
            {**_SQUAD, "question": "What is long?", "answers": {"text": ["The Dee"], "answer_start": [0]}},
        ],
        "Title: River Dee\n\nBackground: The Dee is 110 km long.\n\nQ: How long is it?\n\nA: 110 km\n\nQ: How old is it?\n\nA: unanswerable\n\nQ: What is long?\n\nA: The Dee",
    ),
    "coqa": (
        [{"story": "Al has a dog.", "questions": {"input_text": ["Who has a dog?", "Is it his?"]}, "answers": {"input_text": ["Al", "yes"]}, "additional_answers": {"0": {"input_text": ["Al does", "Yes"]}, "1": {"input_text": ["he", "yes"]}}}],
        "Al has a dog.\n\nQ: Who has a dog?\n\nA: Al\n\nQ: Is it his?\n\nA: yes",
    ),
    "quac": (
        [{"wikipedia_page_title": "Al Ray", "section_title": "Youth", "context": "Al was born in Rome. CANNOTANSWER", "questions": ["Where was he born?", "When?"], "answers": {"texts": [["Rome", "in Rome"], ["CANNOTANSWER"]]}, "orig_answers": {"texts": ["in Rome", "CANNOTANSWER"]}}],
        "TITLE: Al Ray - Youth\nPARAGRAPH: Al was born in Rome.\n\nQ: Where was he born?\n\nA: in Rome\n\nQ: When?\n\nA: CANNOTANSWER",
    ),
    "drop": (
        [{"passage": "Al ran 3 miles, Bo ran 5.", "question": "How many more did Bo run?", "answer": {"number": "2", "date": {"day": "", "month": "", "year": ""}, "spans": []}, "validated_answers": {"number": ["", ""], "date": [{"day": "1", "month": "May", "year": ""}, {"day": "", "month": "", "year": ""}], "spans": [[], ["two", "miles"]]}}],
        "Passage: Al ran 3 miles, Bo ran 5.\nQuestion: How many more did Bo run?\nAnswer: 2",
    ),
    **{
        name: (
            [
                {"example_id": "high0.txt", "article": "Other.", "question": "What?", "options": ["a", "b", "c", "d"], "answer": "A"},
                {**_RACE, "question": "Who keeps bees?", "options": ["Al", "Tom", "Bo", "Cy"], "answer": "B"},
                {**_RACE, "question": "He sells _ .", "options": ["bees", "cats", "honey", "pots"], "answer": "C"},
            ],
            "Article:\nTom keeps bees. He sells honey.\n\nQ: Who keeps bees?\n\nA: Tom\n\nQ: He sells _ .\n\nA: honey",
        )
        for name in ("race_high", "race_middle")
    },
    **{
        f"wmt{year}-{a}-{b}": ([{"translation": {a: f"Text in {a}.", b: f"Text in {b}."}}], f"Text in {a}. = Text in {b}.")
        for year, a, b in ((14, "fr", "en"), (14, "en", "fr"), (16, "de", "en"), (16, "en", "de"), (16, "ro", "en"), (16, "en", "ro"))
    },
    "sat_analogies": (
        [{"stem": ["cup", "tea"], "answer": 1, "choice": [["bee", "sky"], ["bag", "flour"]], "prefix": ""}],
        "cup is to tea as bag is to flour",
    ),
    "blimp": ([{"UID": "wh_island", "sentence_good": "Al sings.", "sentence_bad": "Al sing."}], "Al sings."),
    "wikitext": ([{"page": " = Dee = \n The Dee , 110 @,@ 000 m long . "}], " = Dee =\nThe Dee, 110,000 m long. "),
    "cola": ([{"sentence": "Al sings.", "label": 1}], "Al sings.\nQuestion: Does this sentence make sense?\nAnswer: yes"),
    "sst2": ([{"sentence": "a dull film ", "label": 0}], "a dull film \nQuestion: Is this sentence positive or negative?\nAnswer: negative"),
    "mrpc": ([{**_PAIR, "label": 1}], "Sentence 1: Al sings.\nSentence 2: Al is singing.\nQuestion: Do both sentences mean the same thing?\nAnswer: yes"),
    "qqp": ([{"question1": "Who met Al?", "question2": "Who left?", "label": 0}], "Question 1: Who met Al?\nQuestion 2: Who left?\nQuestion: Do both questions ask the same thing?\nAnswer: no"),
    "qnli": ([{"question": "Who met Al?", "sentence": "Bo met Al.", "label": 0}], "Who met Al?\nBo met Al.\nQuestion: Does this response answer the question?\nAnswer: yes"),
    "wnli": ([{**_PAIR, "label": 0}], "Al sings.\nQuestion: Al is singing. True or False?\nAnswer: False"),
    "mnli": ([{**_NLI, "label": 0}], "The dog slept on the porch.\nQuestion: The dog was outside. True, False or Neither?\nAnswer: True"),
    "mnli_mismatch": ([{**_NLI, "hypothesis": "The dog was inside ", "label": 2}], "The dog slept on the porch.\nQuestion: The dog was inside. True, False or Neither?\nAnswer: False"),
    "swag": ([{"startphrase": "The dog", "ending0": "sings.", "ending1": "sleeps.", "ending2": "reads.", "ending3": "flies.", "label": 1}], "The dog sleeps."),
    "squad": (
        [
            {"title": "Dee", "context": "The Dee is short.", "question": "What is short?", "answers": {"text": ["The Dee"]}},
            {**_SQUAD, "question": "How long is it?", "answers": {"text": ["110 km", "110"], "answer_start": [11, 11]}},
            {**_SQUAD, "question": "What is long?", "answers": {"text": ["The Dee"], "answer_start": [0]}},
        ],
        "Title: River Dee\n\nBackground: The Dee is 110 km long.\n\nQ: How long is it?\n\nA: 110 km\n\nQ: What is long?\n\nA: The Dee",
    ),
    **{
        f"cbt_{kind}": (
            [{"sentences": ["Bo met Al .", "They did n't stay ."], "question": "`` Good , '' XXXXX said .", "options": ["Al", "", "Bo", "Al"], "answer": "Bo"}],
            "Bo met Al. They didn't stay. `` Good, '' Bo said.",
        )
        for kind in ("cn", "ne")
    },
    "lm1b": ([{"text": "Al sings ."}, {"text": "Bo left ."}], "Bo left ."),
    **{name: ([{"text": " al runs <b>"}], " al runs <b>") for name in ("text8", "enwik8")},
    "cnn_dailymail": ([{"article": "Al met Bo. They left.", "highlights": "Al met Bo .\nThey left ."}], "Al met Bo. They left.\nTL;DR: Al met Bo .\nThey left ."),
    "xsum": ([{"document": "Al met Bo.\nThey left.", "summary": "A meeting."}], "Al met Bo.\nThey left.\nTL;DR: A meeting."),
    "jfleg": ([{"sentence": "I eated tea . ", "corrections": ["I ate tea . ", "", "I had tea . "]}], "Poor English input: I eated tea .\nGood English output: I ate tea ."),
    "ptb": ([{"sentence": " al runs "}, {"sentence": " bo <unk> N "}], " al runs \n bo <unk> N "),
}  # fmt: skip
"""task -> lines, and the text of the last document with its answer"""
