"""Text forms that commands, the emulator and the client share: ISO 8601, JSON, and the elements of descriptions."""
