"""Converts text to tokens with a model's tokenizer and chat template.

Needs the extra ``tokenizer``. It downloads nothing: the folder must exist.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockmgr.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ChatTokens"]


class ChatTokens:
    """Converts messages to the tokens of a prompt.

    Args:
        folder: Folder with a Hugging Face tokenizer, such as ``tokenizer.json`` and
            ``tokenizer_config.json``, and optionally a chat template.

    Raises:
        MissingExtraError: The extra ``tokenizer`` is not installed.
        ValueError: The folder does not exist, or holds no tokenizer.

    Attributes:
        is_used: Whether it has converted a text.
    """

    is_used = False

    def __init__(self, folder: str | Path) -> None:
        if not Path(folder).is_dir():
            raise ValueError(f"tokenizer must be a local folder, got {str(folder)!r}")
        try:
            import jinja2  # noqa: F401, PLC0415  (an extra; transformers needs it for templates)
            from transformers import AutoTokenizer  # noqa: PLC0415
        except ImportError:
            raise MissingExtraError("tokenizer", "reading text") from None
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(
                f"tokenizer must be a folder with a tokenizer, got {str(folder)!r}: {reason}"
            ) from None

    @property
    def template(self) -> str | None:
        """The chat template; None without one."""
        template = self._tokenizer.chat_template
        return None if template is None else str(template)

    def prompt(self, messages: Sequence[dict[str, Any]], tools: Any = None) -> list[int]:
        """The tokens of a conversation up to the model's answer.

        Args:
            messages: Each with a role, and a text as its content.
            tools: Tools that the model may call, in OpenAI's format.

        Without a chat template, these are the concatenated contents.

        Raises:
            ValueError: The template refuses these messages.
        """
        tokenizer = self._tokenizer
        if tokenizer.chat_template is None:
            return self.text("\n".join(str(message["content"]) for message in messages) + "\n")
        from jinja2 import TemplateError  # noqa: PLC0415

        try:
            text = tokenizer.apply_chat_template(
                list(messages), tools=tools, tokenize=False, add_generation_prompt=True
            )
        except (TemplateError, TypeError, LookupError, AttributeError, ValueError) as error:
            # A template is a program: what it does not expect raises any of these.
            raise ValueError(f"the chat template refuses it: {error}") from None
        return self.text(text)

    def text(self, text: str) -> list[int]:
        """The tokens of a text, without special tokens.

        Raises:
            ValueError: It has half of a character, which no tokenizer takes.
        """
        self.is_used = True
        text.encode()
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return tokens
