"""What ingest costs and what it finds, side by side with the usual ways: `python -m benchmarks.ingest --help`."""
