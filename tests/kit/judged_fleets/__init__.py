"""Made-up fleets and the reports on them, to compare the judge of one checkout with that of another.

`python -m tests.kit.judged_fleets DIR` writes the report on each fleet into DIR, a file for each fleet.
"""
