"""Situations that tests start from, one folder each."""
