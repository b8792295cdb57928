"""`--prune-samples`: rows that a network knows already are left out of epochs, and each row's score is kept.

It may import core, dynamics, exchange, storage and patches.common. Start reading in pruning.py.
"""
