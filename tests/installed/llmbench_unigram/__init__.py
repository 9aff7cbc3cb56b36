"""Engine `unigram`: the smallest language model, trained by Python alone, so that a rank starts in a fifth of a second.

It learns how often each token is there, as a table of one logit a token. The harness cannot tell it from a larger
model: its ranks draw their own tokens, wait for one another in every step, and log what they counted.
"""
