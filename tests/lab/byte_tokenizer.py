"""A tokenizer with one token a byte, for tests of text."""

from __future__ import annotations

from pathlib import Path

import pytest

TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}{% endif %}"
    "{% for c in m.tool_calls %}<call>{{ c.function.name }}:{{ c.function.arguments.q }}"
    "{% endfor %}{% endfor %}<assistant>"
)


def saved(folder: Path, template: str | None) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("jinja2")
    whole = tokenizers.Tokenizer(tokenizers.models.BPE())
    whole.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=256, initial_alphabet=alphabet, show_progress=False
    )
    whole.train_from_iterator(["a"], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=whole)
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder
