"""What a build does, one file per stage, in the order: inputs, units, passes, vocabulary, encode, assemble."""
