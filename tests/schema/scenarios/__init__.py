"""Databases and their migrations: `models.py`, scripts, and as SQL text the database and its
reference.
"""
