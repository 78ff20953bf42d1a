"""The client and its parts, under their module name in azure-servicebus."""

from sbclient import AutoLockRenewer, ServiceBusClient, ServiceBusReceiver, ServiceBusSender, ServiceBusSession

__all__ = ["AutoLockRenewer", "ServiceBusClient", "ServiceBusReceiver", "ServiceBusSender", "ServiceBusSession"]
