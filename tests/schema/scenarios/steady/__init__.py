"""Three scripts, all applied, and models that agree."""
