"""What a fleet's figures say beyond each node's checks: how they are spread, which groups differ, what moves together.

Nothing here changes a verdict.
"""
