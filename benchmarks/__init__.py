"""Benchmarks: what training and measuring cost, as ratios of work done side by side."""
