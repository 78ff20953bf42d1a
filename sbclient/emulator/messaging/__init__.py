"""Messages over HTTP: the REST API with which clients send, receive and settle."""
