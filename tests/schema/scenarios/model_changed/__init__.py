"""Two scripts, both applied; the model has a column more."""
