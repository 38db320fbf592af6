"""Configs that come with the package, by what they are for."""

NO_RUNS = ("data", "cluster", "finetune", "continue")
"""Directories of configs that are no runs by themselves: of `pretrain data build`, of clusters, and of runs whose model
is a checkpoint's."""
