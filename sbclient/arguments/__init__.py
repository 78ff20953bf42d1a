"""How the arguments of public calls are declared and checked."""
