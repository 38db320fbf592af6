"""Checks that settings of a run suit each other: of several sections together, by what they are about."""
