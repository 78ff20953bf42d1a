"""The broker over the network: AMQP 1.0, the management API, the control API and a page on one port per namespace."""

from sbclient.emulator.emulator import Emulator

__all__ = ["Emulator"]
