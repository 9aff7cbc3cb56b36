CANNOT RUN: recipe azure_gpt3_175b: 16 ranks (2 nodes × 8 GPUs) do not divide into copies of the model of 64 ranks each (tensor 8 × pipeline 8)
