import keras
from sklearn.datasets import load_digits

keras.utils.set_random_seed(1)
x, y = load_digits(return_X_y=True)  # 1,797 pictures of 8 × 8
model = keras.Sequential([keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy")
print(model.fit(x, y, batch_size=50, epochs=3, verbose=0).history)
