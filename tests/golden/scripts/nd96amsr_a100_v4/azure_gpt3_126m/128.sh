CANNOT RUN: recipe azure_gpt3_126m: a global batch of 256 does not divide into micro batches of 4 on 1024 ranks (128 nodes × 8 GPUs); it does on 1, 2, 4, 8, 16, 32, 64 ranks
