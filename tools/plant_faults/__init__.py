"""Plants faults in lines of the product, one at a time, and tells which of them no test near notices."""
