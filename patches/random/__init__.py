"""Random draws inside a step: each row of the batch gets the numbers that it gets on one rank.

It may import patches.common, patches.across_rows and patches.partition. Start reading in stateless_ops.py.
"""
