"""How bytes move between ranks: numpy, MPI and the one TensorFlow op that calls them. Knows nothing of Keras."""
