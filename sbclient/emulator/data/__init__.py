"""The data directory of the emulator: what it keeps over a restart."""
