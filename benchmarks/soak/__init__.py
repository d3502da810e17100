"""Hours of `vedette run` with cameras that misbehave by a seeded plan: `python -m benchmarks.soak --help`."""
