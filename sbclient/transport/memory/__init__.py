"""The bundled broker in this process, behind the transport port."""
