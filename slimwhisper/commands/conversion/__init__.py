"""`slimwhisper convert`: converts between OpenAI's .pt files and Hugging Face's folders."""
