"""LeNet on MNIST in the style of TensorFlow 1, its data through MaTEx's DataSet: lenet_session.py DIRECTORY."""

import sys

import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

batch_size = 100
epochs = 4

mnist = tf.DataSet("MNIST", data_directory=sys.argv[1], normalize=255.0, train_batch_size=batch_size)


def weights(*shape):
    return tf.Variable(tf.truncated_normal(shape, stddev=0.1, seed=sum(shape)))


def biases(size):
    return tf.Variable(tf.constant(0.1, shape=[size]))


def pool(images):
    return tf.nn.max_pool(images, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")


x = tf.placeholder(tf.float32, [None, 28, 28, 1])
y = tf.placeholder(tf.float32, [None, 10])
hidden = pool(tf.nn.relu(tf.nn.conv2d(x, weights(5, 5, 1, 6), [1, 1, 1, 1], "SAME") + biases(6)))
hidden = pool(tf.nn.relu(tf.nn.conv2d(hidden, weights(5, 5, 6, 16), [1, 1, 1, 1], "VALID") + biases(16)))
flat = tf.reshape(hidden, [-1, 5 * 5 * 16])
hidden = tf.nn.relu(tf.matmul(flat, weights(5 * 5 * 16, 120)) + biases(120))
hidden = tf.nn.relu(tf.matmul(hidden, weights(120, 84)) + biases(84))
logits = tf.matmul(hidden, weights(84, 10)) + biases(10)

loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=y, logits=logits))
accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), tf.argmax(y, 1)), tf.float32))
global_step = tf.train.get_or_create_global_step()
train = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss, global_step=global_step)

with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    steps = -(-mnist.training.total_rows // batch_size)
    for epoch in range(epochs):
        total = 0.0
        for _ in range(steps):
            images_of_batch, labels_of_batch = mnist.next_train_batch()
            _, value = session.run([train, loss], feed_dict={x: images_of_batch, y: labels_of_batch})
            total += value
        print(f"epoch {epoch + 1}: loss {total / steps:.4f}")
    score, right = session.run([loss, accuracy], feed_dict={x: mnist.testing_data, y: mnist.testing_labels})
    print("Steps:", session.run(global_step))
    print("Test score:", score)
    print("Test accuracy:", right)
