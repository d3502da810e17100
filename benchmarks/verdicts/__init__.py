"""How fast a vision-language model answers the worker: `python -m benchmarks.verdicts --help`."""
