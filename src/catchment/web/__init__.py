"""What an operator looks at with a browser or with Prometheus."""
