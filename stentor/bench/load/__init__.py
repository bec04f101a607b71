"""What is sent to the server under test, and when."""
