"""Decisions: who runs, who waits, who has which pages, and when audio is due. Plain data, no
torch."""
