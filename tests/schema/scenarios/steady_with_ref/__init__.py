"""Three scripts, all applied, models that agree, and a reference from before the third."""
