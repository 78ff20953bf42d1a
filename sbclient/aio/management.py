"""The administration client, under its module name in azure-servicebus."""

from sbclient.administration import ServiceBusAdministrationClient

__all__ = ["ServiceBusAdministrationClient"]
