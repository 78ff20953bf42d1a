"""Starts what tests need around them: programs, emulators as processes or in a thread, workers, proxies that fail."""
