"""The transport over azure-servicebus, through its public API only."""
