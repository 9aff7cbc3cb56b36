"""Make a tiny OPT, its tokenizer and texts for it, in the folder that is named. Run in DeepSpeed-Chat's environment."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import OPTConfig, OPTForCausalLM

WORDS = ("red", "blue", "green", "one", "two", "three", "cat", "dog", "bird", "sun", "moon", "star", "sky", "tree")
VOCABULARY = 400
ROWS = {"train": 512, "eval": 32}


def main(folder: Path) -> None:
    """Write all three."""
    draw = random.Random(0)  # noqa: S311 - no secret
    texts = {name: [row(draw) for _ in range(count)] for name, count in ROWS.items()}
    (folder / "text").mkdir()
    for name, rows in texts.items():
        (folder / "text" / f"{name}.json").write_text(json.dumps(rows))
    write_model(folder / "opt")
    write_tokenizer(folder / "opt", [" ".join(row.values()) for row in texts["train"]])


def row(draw: random.Random) -> dict[str, str]:
    """Draw a question, the answer to it, and another one."""
    said = draw.sample(WORDS, 4)
    return {
        "prompt": f"Human: repeat {' '.join(said)} Assistant:",
        "chosen": " ".join(said),
        "rejected": " ".join(draw.sample(WORDS, 3)),
    }


def write_model(folder: Path) -> None:
    """Write an OPT of two layers that has learned nothing."""
    torch.manual_seed(0)
    config = OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        word_embed_proj_dim=64,
        ffn_dim=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        dropout=0.0,
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=2,
    )
    # Step 3 reads its critic from a file of this kind.
    OPTForCausalLM(config).save_pretrained(folder, safe_serialization=False)
    # The fork finds a local model's tokenizer by the name in its configuration.
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "_name_or_path": str(folder)}))


def write_tokenizer(folder: Path, texts: list[str]) -> None:
    """Write the two files of OPT's kind of tokenizer."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=VOCABULARY, special_tokens=["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.save_model(str(folder))
    tokens = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "</s>")
    about = {"tokenizer_class": "GPT2Tokenizer", "pad_token": "<pad>", "add_bos_token": True, **tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
