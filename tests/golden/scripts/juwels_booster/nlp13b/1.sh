CANNOT RUN: recipe nlp13b: 4 ranks (1 node × 4 GPUs) do not divide into copies of the model of 8 ranks each (tensor 2 × pipeline 4)
