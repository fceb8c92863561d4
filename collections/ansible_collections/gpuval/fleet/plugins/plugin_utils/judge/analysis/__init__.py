"""What a fleet's figures say beyond the checks: spreads, groups that differ, correlations. It changes no verdict."""
