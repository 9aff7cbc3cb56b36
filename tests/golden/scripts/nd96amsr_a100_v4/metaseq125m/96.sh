CANNOT RUN: recipe metaseq125m: a global batch of 256 sequences does not divide by 384 copies of the model (96 nodes × 8 GPUs): opt-baselines would round in silence to 0 on each
