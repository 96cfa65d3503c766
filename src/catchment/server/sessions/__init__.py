"""Sessions: the state of each client, and the execution of its statements."""
