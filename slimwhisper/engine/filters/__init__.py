"""The rules for the next token, as filters over the logits of all rows; `table` lists them."""
