"""How long a step takes: formulas, what a strategy says of itself, steps of a timeline, and what draws pictures.

It may import nothing. Start reading in cost_model.py.
"""
