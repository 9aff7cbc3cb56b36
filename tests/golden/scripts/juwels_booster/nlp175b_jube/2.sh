CANNOT RUN: recipe nlp175b_jube: 8 ranks (2 nodes × 4 GPUs) do not divide into copies of the model of 64 ranks each (tensor 8 × pipeline 8)
