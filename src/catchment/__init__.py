"""Catchment: the durable front door of a DuckLake."""
