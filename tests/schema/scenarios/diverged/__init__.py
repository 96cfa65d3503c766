"""The second script was edited after it was applied, and there is no reference."""
