"""Makes docs/results.md and its chart from benchmarks/results/published/*.json, so that no figure
is copied by hand."""
