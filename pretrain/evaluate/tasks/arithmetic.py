"""GPT-3's arithmetic sets (2005.14165, section 3.9.1): from OpenAI's files, or generated in the same form.

The files (github.com/openai/gpt-3, data/) hold 2,000 different problems each. "D digits" means both numbers are
uniform in 0..10^D - 1, so shorter numbers occur too; single digits are 1..9, with brackets around the first two.
"""

import zlib
from functools import partial

import numpy as np
from numpy.typing import NDArray

from data_pipeline.order.order import permute, round_keys
from pretrain.evaluate.tasks.base import Loaded, Sources, Task, TaskDocument
from pretrain.evaluate.tasks.openai import SOURCE, openai_file

_DOCUMENTS = 2000
_SIGNS = "+-*"
_WORDS = {"addition": "plus", "subtraction": "minus", "multiplication": "times"}
_DIGITS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}
_THREE_OPERANDS = "arithmetic_1dc"
_TWO_OPERANDS = {
    f"arithmetic_{digits}d{form[0]}": (digits, form) for digits in _DIGITS for form in ("addition", "subtraction")
} | {"arithmetic_2dm": (2, "multiplication")}


def document(task: str, index: int, seed: int) -> TaskDocument:
    """Problem `index` of a generated set, a pure function of the arguments; no two of a set are the same."""
    keys = round_keys(seed, zlib.crc32(task.encode()), 0)
    if task == _THREE_OPERANDS:
        return _three_operands(_draw(index, 9**3 * len(_SIGNS) ** 2, keys))
    digits, form = _TWO_OPERANDS[task]
    x, y = divmod(_draw(index, 10 ** (2 * digits), keys), 10**digits)
    return _two_operands(x, y, form)


def _draw(index: int, problems: int, keys: NDArray[np.uint64]) -> int:
    return int(permute(np.array([index]), problems, keys)[0])


def _two_operands(x: int, y: int, form: str) -> TaskDocument:
    answer = {"addition": x + y, "subtraction": x - y, "multiplication": x * y}[form]
    return _question(f"{x} {_WORDS[form]} {y}", answer)


def _three_operands(problem: int) -> TaskDocument:
    problem, inner = divmod(problem, len(_SIGNS))
    problem, outer = divmod(problem, len(_SIGNS))
    a, b, c = problem // 81 + 1, problem // 9 % 9 + 1, problem % 9 + 1
    return _question(f"({a} {_SIGNS[inner]} {b}) {_SIGNS[outer]} {c}", _apply(_apply(a, inner, b), outer, c))


def _apply(x: int, sign: int, y: int) -> int:
    return (x + y, x - y, x * y)[sign]


def _question(problem: str, answer: int) -> TaskDocument:
    return TaskDocument(f"\n\nQ: What is {problem}?\n\nA:", f" {answer}")


def _load(task: str, file: str, sources: Sources) -> Loaded:
    if sources.data_dir is None:
        return Loaded([document(task, index, sources.seed) for index in range(_DOCUMENTS)])
    return openai_file(task, file, sources)


def _task(name: str, file: str) -> Task:
    title = f"{_TWO_OPERANDS[name][0]}-digit {_TWO_OPERANDS[name][1]}" if name in _TWO_OPERANDS else "Three operations"
    return Task(
        name=name, load=partial(_load, name, file), output_types=("loglikelihood", "generate_until"),
        metrics=("exact_match",), paper_shots=50, synthetic=True, title=title, source=f"{SOURCE}; or generated",
    )  # fmt: skip


TASKS = [
    *(_task(name, f"{_DIGITS[digits]}_digit_{form}.jsonl") for name, (digits, form) in _TWO_OPERANDS.items()),
    _task(_THREE_OPERANDS, "single_digit_three_ops.jsonl"),
]
