"""The control API of the emulator."""
