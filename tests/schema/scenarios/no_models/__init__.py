"""No models, no scripts, no database."""
