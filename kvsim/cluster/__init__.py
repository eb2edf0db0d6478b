"""Routers: who gets a request, by what is known of replicas at that moment."""
