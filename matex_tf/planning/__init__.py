"""How long a step takes, by formulas and by measurements: which strategy pays on how many ranks.

It may import core, exchange, center and strategies. Start reading in cost_model.py.
"""
