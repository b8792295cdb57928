"""Horovod's Python names, served by matex_tf: for scripts that import a Horovod that no longer builds.

`import horovod.tensorflow as hvd` comes here under `matex-tf run` where no Horovod is installed, and everywhere after
`import matex_tf.horovod.names`, an installed one or not. Names, signatures and behaviour are those of Horovod 0.28.1.

In such a script Horovod's conventions hold: the batch is the rank's own, and nothing is shared out, averaged or
written once unless the script says so. The first import of these names puts the other patches aside.

    tensorflow, keras, callbacks, elastic, util, …    what a script imports
    core.basics, core.process_sets, core.ops, …        what they stand on
    core.coordinator, core.requests                    how ranks come to agree on the next collective
    optimizers                                         `DistributedOptimizer` and the tape

It may import core, storage, faults, exchange, patches.common, patches.recovery and its own rooms.

Start reading in tensorflow.py.
"""

from matex_tf.features.horovod import alias

alias.put_patches_aside()
alias.install(first=True)
