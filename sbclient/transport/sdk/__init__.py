"""The service through azure-servicebus, behind the transport port."""
