"""A traced step, rebuilt for a rank's rows: the answer of one rank by construction.

A training step is traced once, as one rank would. Each tensor of its graph gets a label that says what a rank holds
of it (`labels.py`), by a rule for each op (`rules/`); what no rule knows is computed whole by every rank. It is the
idea of GSPMD (arXiv 2105.04663), for TensorFlow's graphs and batches of any number of rows.

Three passes: `shapes/` finds which axes count rows, `analysis.py` labels tensors and plans exchanges, `build.py`
makes the graph; `step.py` puts them together. The room knows nothing of Keras. It may import the exchange and core.
Start reading in step.py, then labels.py and rules/elementwise.py.
"""
