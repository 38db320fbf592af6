"""The reference of tasks, read from the tasks themselves, and the keys of a task file."""

from pretrain.config.keys import keys
from pretrain.evaluate.tasks.base import Task
from pretrain.evaluate.tasks.normalization import squad
from pretrain.evaluate.tasks.registry import HELD_OUT, NAMES, task_named
from pretrain.evaluate.tasks.task_file import TaskFile

_COMPARED = {
    "accuracy": "every token of the answer is the most probable one",
    "accuracy_sum": "choices by their log probability",
    "accuracy_per_token": "choices by their log probability per token",
    "accuracy_unconditional": "choices by P(choice given the question) / P(choice given `CONTEXT`)",
    "exact_match": "the generated text, letter by letter",
}


def tasks_page() -> str:
    """In Markdown."""
    rows = [_row(task_named(name)) for name in NAMES if name != HELD_OUT]
    fields = [f"| `{key.dotted}` | {'yes' if key.required else ''} | {key.description} |" for key in keys(TaskFile)]
    return "\n".join(
        [
            "# Tasks",
            "",
            "The tasks of `pretrain eval RUN --tasks A,B --data DIR`, by name; this page is generated from them."
            " `heldout` is the perplexity of the run's own held-out text. Files are JSON lines, plain or gzipped,"
            " anywhere in DIR. Examples are drawn from the second file, or from the first where there is only one. K is"
            " that of GPT-3's few-shot setting. `pretrain eval fetch TASK --data DIR` downloads the files of a task"
            " that names a dataset.",
            "",
            "| Task | Files | Metric | K | Dataset |",
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
            "[Add a task](add-a-task.md) shows them in examples. Keys outside `metadata.pretrain` are lm-eval's.",
            "",
            "| Key | Required | Meaning |",
            "|---|---|---|",
            *fields,
            "",
        ]
    )


def _row(task: Task) -> str:
    files = "<br>".join(f"`{file.file}`" for file in task.fetch)
    compared = _COMPARED.get(task.metric, "").replace("CONTEXT", task.unconditional_context or "")
    if "generate_until" in task.output_types and task.normalize is squad:
        compared = "the generated text, without case, punctuation and articles"
    metric = f"`{task.metric}`" + (f": {compared}" if compared else "")
    shots = "" if task.paper_shots is None else str(task.paper_shots)
    datasets = dict.fromkeys(f"{file.dataset}" + (f", {file.config}" if file.config else "") for file in task.fetch)
    return f"| `{task.name}` ({task.title}) | {files} | {metric} | {shots} | {'<br>'.join(datasets)} |"
