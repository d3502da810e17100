"""A genuine llama.cpp server with a model of no size at all; see `genuine`."""
