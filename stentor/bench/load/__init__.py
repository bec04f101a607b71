"""Load of the server under test: requests and their times."""
