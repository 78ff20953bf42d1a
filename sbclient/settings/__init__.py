"""How options are read and checked: durations, numbers, flags and choices as people write them."""
