"""A traced step, rebuilt for a rank's rows: the answer of one rank by construction.

A training step is traced once, as one rank would. Each tensor of its graph gets a label that says what a rank holds of
it (`labels.py`), by a rule for each op (`rules/`); what no rule knows is computed whole by every rank. It is the idea of
GSPMD (arXiv 2105.04663), for TensorFlow's graphs and batches of any number of rows.

Four passes: `shapes.py` finds which axes count rows, `analysis.py` labels tensors and plans exchanges, `build.py` makes
the graph, `step.py` puts them together. It knows nothing of Keras. Start reading in labels.py, then rules/elementwise.py.
"""
