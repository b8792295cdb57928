"""`--prune-samples`: rows that a network knows already are left out of epochs, and each row's score is kept.

It may import core, dynamics, patches.common and patches.across_rows. Start reading in pruning.py.
"""
