"""Logs, metrics and traces: what the package reports about its own work."""
