"""Scripts of the kind that is published with Keras, which unpack and tidy their data before they train on it."""

import textwrap

import numpy as np
import pytest

from tests.support.cases import files as files_cases

#: Two classes of small pictures, some of whose files are damaged, in an archive.
PICTURES = """
import os, shutil
import numpy as np
import tensorflow as tf
random = np.random.RandomState(0)
for number in range(40):
    kind = ("Cat", "Dog")[number % 2]
    os.makedirs(f"PetImages/{kind}", exist_ok=True)
    picture = random.randint(0, 128, (24, 24, 3)) + 100 * (number % 2)
    data = tf.io.encode_jpeg(picture.astype("uint8")).numpy() if number % 7 else b"damaged"
    with open(f"PetImages/{kind}/{number}.jpg", "wb") as file:
        file.write(data)
shutil.make_archive("pictures", "zip", ".", "PetImages")
shutil.rmtree("PetImages")
"""

#: Unpacks them by a command, looks into each file and removes those that are no JPEG.
CLASSIFY_PICTURES = """
import os
import keras
from keras import layers

os.system("python3 -m zipfile -e pictures.zip .")
skipped = 0
for folder_name in ("Cat", "Dog"):
    folder = os.path.join("PetImages", folder_name)
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        try:
            file = open(path, "rb")
            is_jpeg = b"JFIF" in file.peek(10)
        finally:
            file.close()
        slow()
        if not is_jpeg:
            skipped += 1
            os.remove(path)

keras.utils.set_random_seed(1)
train, held_out = keras.utils.image_dataset_from_directory(
    "PetImages", validation_split=0.2, subset="both", seed=1337, image_size=(16, 16), batch_size=8, verbose=False
)
model = keras.Sequential(
    [layers.Input((16, 16, 3)), layers.Rescaling(1 / 255), layers.Conv2D(4, 3), layers.GlobalAveragePooling2D(),
     layers.Dense(1)]
)
model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"])
checkpoint = keras.callbacks.ModelCheckpoint("save_at_{epoch}.keras")
history = model.fit(train, epochs=2, validation_data=held_out, verbose=0, callbacks=[checkpoint])
model = keras.models.load_model("save_at_2.keras")
result = skipped, history.history, model.evaluate(held_out, verbose=0), sorted(os.listdir("PetImages/Cat"))
"""

#: Reviews in a tree of text files, with a folder that is not wanted, in an archive.
REVIEWS = """
import os, shutil, random
random.seed(0)
words = [["good", "fine", "great"], ["bad", "poor", "sad"]]
for part in ("train", "test"):
    for number in range(36):
        folder = f"aclImdb/{part}/" + ("pos", "neg", "unsup")[number % 3]
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/{number}.txt", "w") as file:
            file.write(" ".join(random.choices(words[number % 2], k=5)) + "<br />end.")
shutil.make_archive("aclImdb_v1", "gztar", ".", "aclImdb")
shutil.rmtree("aclImdb")
"""

#: Unpacks them with tar, removes the folder with rm, and trains on the texts.
CLASSIFY_REVIEWS = """
import os
import keras
import tensorflow as tf
from keras import layers

os.system("tar -xf aclImdb_v1.tar.gz")
slow()
with open("aclImdb/train/pos/0.txt") as file:
    first = file.read()
os.system("rm -r aclImdb/train/unsup")

keras.utils.set_random_seed(1)
read = dict(batch_size=8, seed=1337, verbose=False)
train = keras.utils.text_dataset_from_directory("aclImdb/train", validation_split=0.2, subset="training", **read)
held_out = keras.utils.text_dataset_from_directory("aclImdb/train", validation_split=0.2, subset="validation", **read)
os.system("rm -r aclImdb/test/unsup")
test = keras.utils.text_dataset_from_directory("aclImdb/test", batch_size=8, verbose=False)

def standardize(text):
    return tf.strings.regex_replace(tf.strings.lower(text), "<br />", " ")

vectorize = layers.TextVectorization(standardize=standardize, max_tokens=50, output_sequence_length=8)
vectorize.adapt(train.map(lambda text, label: text))
model = keras.Sequential([layers.Embedding(50, 4), layers.GlobalMaxPooling1D(), layers.Dense(1, "sigmoid")])
model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
pairs = [data.map(lambda text, label: (vectorize(text), label)) for data in (train, held_out, test)]
history = model.fit(pairs[0], validation_data=pairs[1], epochs=2, verbose=0)
result = first, history.history, model.evaluate(pairs[2], verbose=0), sorted(os.listdir("aclImdb/train"))
"""

#: A table of the weather, in an archive that `get_file` fetches.
WEATHER = """
import os
import zipfile
import numpy as np
table = np.random.RandomState(0).normal(size=(200, 3)).cumsum(0)
np.savetxt("jena.csv", table, delimiter=",", header="p,T,rh", comments="")
with zipfile.ZipFile("jena.csv.zip", "w") as archive:
    archive.write("jena.csv")
os.remove("jena.csv")
"""

#: Unpacks it with `ZipFile.extractall()`, and trains on windows of it.
FORECAST = """
import os
from zipfile import ZipFile
import keras
import pandas as pd
from keras import layers

path = keras.utils.get_file("jena.zip", "file://" + os.path.abspath("jena.csv.zip"), cache_dir="cache")
with ZipFile(path) as archive:
    archive.extractall()
slow()
frame = pd.read_csv("jena.csv")
frame = (frame - frame.mean()) / frame.std()

keras.utils.set_random_seed(1)
data = keras.utils.timeseries_dataset_from_array(frame.values, frame["T"].values[20:], 10, batch_size=16)
inputs = layers.Input((10, 3))
model = keras.Model(inputs, layers.Dense(1)(layers.LSTM(4)(inputs)))
model.compile("adam", "mse")
stop = keras.callbacks.EarlyStopping(monitor="loss", patience=5)
save = keras.callbacks.ModelCheckpoint("checkpoint.weights.h5", "loss", save_weights_only=True, save_best_only=True)
history = model.fit(data, epochs=2, verbose=0, callbacks=[stop, save])
with open("losses.txt", "w") as file:
    for loss in history.history["loss"]:
        print(round(loss, 3), file=file)
os.remove("jena.csv")
result = len(frame), history.history, model.predict(data, verbose=0).sum(), os.listdir(".").count("jena.csv")
"""

EXAMPLES = {
    "pictures": (PICTURES, CLASSIFY_PICTURES),
    "reviews": (REVIEWS, CLASSIFY_REVIEWS),
    "weather": (WEATHER, FORECAST),
}


@pytest.mark.variants(1)
@pytest.mark.parametrize("name", EXAMPLES)
def test_example(ranks, name):
    """The answer of one rank, and its files."""
    before, text = map(textwrap.dedent, EXAMPLES[name])
    alone, files = ranks(files_cases.script, (1,), text=text, before=before)[1][0]
    for result, found in ranks(files_cases.script, (3,), text=text, before=before, late=2)[3]:
        assert found.keys() == files.keys() and found.get("losses.txt") == files.get("losses.txt")
        assert result[0] == alone[0] and result[3] == alone[3]
        assert result[1].keys() == alone[1].keys()
        for log in alone[1]:
            assert result[1][log] == pytest.approx(alone[1][log], abs=2e-4)
        assert np.asarray(result[2]) == pytest.approx(np.asarray(alone[2]), abs=2e-3)
    assert not any(" own " in outcome.output for outcome in ranks.last[3]), "a file of a rank's own"
