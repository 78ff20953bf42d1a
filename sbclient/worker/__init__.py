"""The syphon as a service: its settings, its run from start to shutdown, and what it tells of itself meanwhile."""
