"""The parts of docs/ that are generated from the code. `python -m tests.pages` writes all of them."""
