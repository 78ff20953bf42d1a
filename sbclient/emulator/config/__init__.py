"""The configuration of the emulator: Microsoft's Config.json and its extensions."""
