"""The errors, under their module name in azure-servicebus."""

from sbclient.errors import *  # noqa: F403  # an alias of the whole module
