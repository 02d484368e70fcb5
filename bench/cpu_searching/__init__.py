"""The parts of bench.cpu_search: which problems, one search by the product, what is kept, the last race."""
