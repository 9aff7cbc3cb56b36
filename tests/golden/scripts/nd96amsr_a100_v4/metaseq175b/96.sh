CANNOT RUN: recipe metaseq175b: a global batch of 1024 sequences does not divide by 96 copies of the model (96 nodes × 8 GPUs): opt-baselines would round in silence to 10 on each
