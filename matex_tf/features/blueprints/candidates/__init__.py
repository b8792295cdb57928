"""A script that is run as a candidate of `matex-tf grow`: its network gets the candidate's values, its `fit` an end.

It may import blueprints, job and patches.common. Start reading in training.py.
"""
