"""`scripts/bench step`: what an exchange adds to a training step, beside Horovod, MultiWorkerMirroredStrategy and DDP.

`turns` starts the jobs and lets them run in turn; `matex`, `tf2` and `ddp` are what their ranks run; `models` has the
four models for Keras and for PyTorch; `report` makes figures of seconds.
"""
