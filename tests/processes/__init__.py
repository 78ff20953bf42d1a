"""The product as processes of the system over loopback, on roads that fail, with an account at the end."""
