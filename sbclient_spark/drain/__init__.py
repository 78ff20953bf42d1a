"""Moves the backlog to the primary on Spark."""
