"""What settings of a run suit each other: checks of several sections together, by what they are about."""
