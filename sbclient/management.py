"""The administration client and the descriptions, under their module name in azure-servicebus."""

from sbclient.administration import *  # noqa: F403  # an alias of the whole module
