"""What a build does, one file per stage, in the order: inputs, passes, vocabulary, encode, assemble."""
