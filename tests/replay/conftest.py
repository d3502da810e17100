"""Scenario files here are run by test_scenario_run.py, with the time and the data that they need."""

collect_ignore_glob = ["*.scenario.yaml"]
