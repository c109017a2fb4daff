"""`slimwhisper convert`: OpenAI's .pt files and Hugging Face's folders, made from each other."""
