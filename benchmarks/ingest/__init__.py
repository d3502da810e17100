"""Cost and recall of ingest, side by side with the usual ways: `python -m benchmarks.ingest --help`."""
