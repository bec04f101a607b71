"""How long a test waits for what must happen. It ends a hang, and says nothing about speed."""

STUCK_S = 300.0  # real seconds: a machine on which twenty processes share a core is in time
