"""The third script was edited after it was applied; the reference is from before it."""
