"""Reads of queues and subscriptions, in batches and streams."""
