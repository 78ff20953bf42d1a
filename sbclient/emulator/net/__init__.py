"""Byte streams and HTTP of the emulator: TCP, TLS and WebSockets, with injected faults."""
