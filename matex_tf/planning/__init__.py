"""How long a step takes, as formulas: what a strategy says of itself, and what draws pictures.

It may import nothing. Start reading in cost_model.py.
"""
