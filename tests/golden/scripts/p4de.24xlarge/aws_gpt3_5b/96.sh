CANNOT RUN: recipe aws_gpt3_5b: a global batch of 2048 does not divide into micro batches of 2 on 768 ranks (96 nodes × 8 GPUs); it does on 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024 ranks
