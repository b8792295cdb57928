"""Training loops of the script's own: `tf.GradientTape`, optimizers and metrics outside of `fit`.

- `position`: which part of which batch the loop works on now; in a variable, so that compiled steps see it too.
- `batched`, `walk`, `iteration`: pipelines that the script iterates by itself, shared out by rows.
- `updates`: gradients and optimizers.
- `results`: metrics that the script reads.
- `alike`: weights and moving statistics on all ranks.
- `files`: checkpoints, saved models and summaries.
"""
