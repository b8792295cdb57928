"""Training loops of the script's own: `tf.GradientTape`, optimizers and metrics outside of `fit`.

- `position`: which part of which batch the loop works on now; in a variable, so that compiled steps see it too.
- `batched`, `shared_loop`, `divided`, `iteration`: pipelines that the script iterates by itself, shared out by rows.
- `gradient_updates`: gradients and optimizers; `step_loss`: the loss that a script returns or prints.
- `metric_results`: metrics that the script reads.
- `replica_sync`: weights and moving statistics on all ranks.
- `compiled`: compiled functions that get whole batches, and share them out by themselves.
- `files`: checkpoints, saved models and summaries.

It may import the other rooms of patches. Start reading in iteration.py.
"""
