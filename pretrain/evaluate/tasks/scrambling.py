"""GPT-3's word scrambling and manipulation sets (2005.14165, section 3.9.2), from OpenAI's files."""

from functools import partial

from pretrain.evaluate.tasks.base import Format, Sources, Task, TaskDocument

_FORMAT = Format("Please unscramble the letters into a word, and write that word:")
_FILES = {
    "anagrams1": "mid_word_1_anagrams.jsonl",
    "anagrams2": "mid_word_2_anagrams.jsonl",
    "cycle_letters": "cycle_letters_in_word.jsonl",
    "random_insertion": "random_insertion_in_word.jsonl",
    "reversed_words": "reversed_words.jsonl",
}


def _load(task: str, file: str, sources: Sources) -> list[TaskDocument]:
    return [TaskDocument(line["context"], line["completion"]) for line in sources.read(task, file)]


TASKS = [Task(name, partial(_load, name, file), _FORMAT, _FORMAT, generates=True) for name, file in _FILES.items()]
