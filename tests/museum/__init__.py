"""The museum of silent faults: faults that other systems shipped, planted in this one, and what finds each."""
