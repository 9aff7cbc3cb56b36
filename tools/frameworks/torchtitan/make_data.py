"""Write a small tokenizer, and texts of random words, into a folder: what torchtitan's debug model trains on."""

import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

folder = Path(sys.argv[1])
draw = random.Random(1)  # noqa: S311 - words, no secrets
texts = [" ".join(f"word{draw.randrange(300)}" for _ in range(200)) for _ in range(2000)]
for name in ("tokenizer", "c4_test"):
    (folder / name).mkdir(parents=True, exist_ok=True)
(folder / "c4_test" / "data.json").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
trainer = trainers.BpeTrainer(vocab_size=1024, special_tokens=["<s>", "</s>"])
tokenizer.train_from_iterator(texts, trainer)
tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
words = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True}
(folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(words))
