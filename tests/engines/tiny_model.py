"""``python -m tests.engines.tiny_model FOLDER``: a Llama with random weights, and a tokenizer."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LETTERS = "abcdefghijklmnop"


def text(rng: random.Random) -> str:
    words = ("".join(rng.choices(LETTERS, k=rng.randint(2, 7))) for _ in range(30))
    return " ".join(words)


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    trained.train_from_iterator([text(rng) for _ in range(500)], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=32768,
        bos_token_id=1,
        eos_token_id=2,
        torch_dtype="float32",
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
