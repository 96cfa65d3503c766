"""Access: users, passwords, roles, tokens of a login, and TLS."""
