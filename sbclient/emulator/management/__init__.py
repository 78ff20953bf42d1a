"""The management API of Service Bus: ATOM documents over HTTP."""
