"""Chats as tokens: messages, chat templates, response parsing, tokenizers. Knows no engine."""
