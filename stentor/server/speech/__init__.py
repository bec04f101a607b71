"""A request while it is being generated: its plan, its run, its output."""
