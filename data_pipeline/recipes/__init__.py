"""Samples of each objective: a dataset's split -> numbered samples -> Rows."""
