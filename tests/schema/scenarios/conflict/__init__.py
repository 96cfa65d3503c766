"""Two developers have written a third script."""
