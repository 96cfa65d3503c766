"""The third script is applied here and not in production; the models have gone on."""
