"""The Flight SQL surface: calls, their limits and statuses, actions and metadata."""
