"""The control API of the emulator: inspect, reset, purge, inject faults, read and send messages."""
