"""Measures: how big, which way, and with what effect; they see networks and never rules."""
