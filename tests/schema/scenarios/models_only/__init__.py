"""Models, and neither scripts nor a database."""
