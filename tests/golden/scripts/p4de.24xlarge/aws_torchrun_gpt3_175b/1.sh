CANNOT RUN: recipe aws_torchrun_gpt3_175b: 8 ranks (1 node × 8 GPUs) do not divide into copies of the model of 64 ranks each (tensor 8 × pipeline 8)
