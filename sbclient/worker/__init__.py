"""The syphon as a service: its settings, its start and end, and what operators see of it."""
