"""The syphon as a service: settings, start, shutdown, health checks and HTTP endpoints."""
