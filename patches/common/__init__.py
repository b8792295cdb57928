"""What patches share: how they wrap names, which rows are whose, what they remember of a model.

It may import core, strategies and exchange. Start reading in wrapping.py.
"""
