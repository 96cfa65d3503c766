"""Benchmarks: one file per claim, each a table of ratios against peers measured in the same run."""
