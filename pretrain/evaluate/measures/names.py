"""Names that task files may use, apart from what they stand for, so that reading a task file imports no library."""

NORMALISATIONS = ("strip", "answer")
TOGETHER_NAMES = ("macro_f1", "group_all", "group_f1", "by_group")
