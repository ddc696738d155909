"""Data between the tables and the trainer: drawn transitions, SFT examples, chats, demonstrations."""
