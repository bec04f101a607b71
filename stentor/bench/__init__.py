"""`stentor bench`: the benchmark of speech servers and of the engine in process.

Nothing is imported here, so that the command line can offer `bench` without paying for it.
What every number means: docs/benchmarking.md.
"""
