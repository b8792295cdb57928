"""What a training has computed, step by step, in files, and how far two trainings are apart.

It may import errors. Start reading in record.py.
"""
