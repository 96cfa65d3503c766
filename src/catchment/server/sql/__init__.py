"""Clients' SQL: parsed, authorized, limited to a tenant, and planned as steps, before it runs."""
