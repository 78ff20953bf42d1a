"""Attacks on the emulator by clients without a token, and what they cost."""
