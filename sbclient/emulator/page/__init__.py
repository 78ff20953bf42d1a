"""The web page of the emulator, and the live data behind it."""
