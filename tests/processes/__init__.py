"""The product as processes of the system over loopback, on proxies that fail, with an account at the end."""
