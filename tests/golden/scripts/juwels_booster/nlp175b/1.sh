CANNOT RUN: recipe nlp175b: 4 ranks (1 node × 4 GPUs) do not divide into copies of the model of 64 ranks each (tensor 8 × pipeline 8)
