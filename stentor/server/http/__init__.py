"""HTTP: routes, responses and middleware."""
