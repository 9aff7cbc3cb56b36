CANNOT RUN: recipe metaseq125m: a global batch of 256 sequences does not divide by 512 copies of the model (128 nodes × 8 GPUs): opt-baselines would round in silence to 0 on each
