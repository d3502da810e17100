"""A genuine vLLM with a model of no size at all; see `genuine`."""
