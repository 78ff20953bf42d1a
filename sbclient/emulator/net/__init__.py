"""Byte streams and HTTP of the emulator: TCP, TLS, WebSockets, and their faults."""
