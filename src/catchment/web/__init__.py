"""Web interface: the dashboard, and metrics for Prometheus."""
