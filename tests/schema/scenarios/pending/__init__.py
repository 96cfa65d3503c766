"""The third of three scripts is not applied."""
