"""What objects leave behind, and how long they live: X5 to X7 of the laws of public calls."""
