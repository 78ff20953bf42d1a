"""Writes: rows to messages, and messages to Service Bus."""
