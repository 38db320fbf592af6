"""The reference of tasks, read from the tasks themselves, and the keys of a task file."""

from pretrain.config.keys import keys
from pretrain.evaluate.tasks.base import Task
from pretrain.evaluate.tasks.registry import HELD_OUT, NAMES, task_named
from pretrain.evaluate.tasks.task_file import TaskFile

_NORMALISATIONS = {
    "accuracy": "the answer has to be the most probable text, token by token",
    "accuracy_sum": "choices by their log probability",
    "accuracy_per_token": "choices by their log probability per token",
    "accuracy_unconditional": "choices by P(choice given the question) / P(choice given `BARE`)",
    "exact_match": "the text that is made, letter by letter",
}


def tasks_page() -> str:
    """In Markdown."""
    rows = [_row(task_named(name)) for name in NAMES if name != HELD_OUT]
    fields = [f"| `{key.dotted}` | {'yes' if key.required else ''} | {key.description} |" for key in keys(TaskFile)]
    return "\n".join(
        [
            "# Tasks",
            "",
            "What `pretrain eval RUN --tasks A,B --data DIR` knows by name; this page is made from the tasks. `heldout`"
            " is the perplexity of the run's own held-out text. Files are JSON lines, plain or gzipped, anywhere in"
            " DIR; examples are drawn from the second file, or from the first where there is one only. K is that of"
            " GPT-3's few-shot setting. `pretrain eval fetch TASK --data DIR` gets the files of a task that names a"
            " dataset.",
            "",
            "| Task | Files | Judged by | K | Dataset |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "## Sources",
            "",
            "| Task | Source |",
            "|---|---|",
            *[f"| `{name}` | {task_named(name).source} |" for name in NAMES if name != HELD_OUT],
            "",
            "## Keys of a task file",
            "",
            "[Add a task](add-a-task.md) shows them on examples.",
            "",
            "| Key | Required | Meaning |",
            "|---|---|---|",
            *fields,
            "",
        ]
    )


def _row(task: Task) -> str:
    files = "<br>".join(f"`{file.file}`" for file in task.fetch)
    judged = _NORMALISATIONS.get(task.metric, "").replace("BARE", task.bare or "")
    if "text" in task.judged and task.normalise == "answer":
        judged = "the text that is made, without case, punctuation and articles"
    metric = f"`{task.metric}`" + (f": {judged}" if judged else "")
    shots = "" if task.paper_shots is None else str(task.paper_shots)
    datasets = dict.fromkeys(f"{file.dataset}" + (f", {file.config}" if file.config else "") for file in task.fetch)
    return f"| `{task.name}` ({task.title}) | {files} | {metric} | {shots} | {'<br>'.join(datasets)} |"
