"""Models and scripts for them; the database is not there yet."""
