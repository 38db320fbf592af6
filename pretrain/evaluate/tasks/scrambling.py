"""GPT-3's word scrambling and manipulation sets (2005.14165, section 3.9.2), from OpenAI's files."""

from functools import partial

from pretrain.evaluate.tasks.base import Format, Task
from pretrain.evaluate.tasks.openai import SOURCE, openai_file

_FORMAT = Format("Please unscramble the letters into a word, and write that word:")
_FILES = {
    "anagrams1": "mid_word_1_anagrams.jsonl",
    "anagrams2": "mid_word_2_anagrams.jsonl",
    "cycle_letters": "cycle_letters_in_word.jsonl",
    "random_insertion": "random_insertion_in_word.jsonl",
    "reversed_words": "reversed_words.jsonl",
}


TASKS = [
    Task(
        name=name, load=partial(openai_file, name, file), output_types=("loglikelihood", "generate_until"),
        metrics=("exact_match",), zero_shot=_FORMAT, few_shot=_FORMAT, paper_shots=100, synthetic=True,
        title=name.replace("_", " ").capitalize(), source=SOURCE,
    )
    for name, file in _FILES.items()
]  # fmt: skip
